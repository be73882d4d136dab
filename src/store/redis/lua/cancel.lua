-- Removes a job that waits, or asks for the end of one that is out. Repeat-safe: what is removed is not found again.
-- ARGV: 2 id, 3 the number that it carries and 4 its 16 bytes (both empty: it carries none).
-- Reply: now, the state in which it was found (0: there is none), and of one that is out its number, and delivery and
--   nonce of its lease.
local n = find(ARGV[2], ARGV[3], ARGV[4])
if not n then
  return { now, 0 }
end
local state, _, member = where(n)
if state == 3 then
  local lease = call('HGET', O, n)
  local traits = string.char(bit.bor(string.byte(lease, 13), CANCELLED))
  call('HSET', O, n, string.sub(lease, 1, 12) .. traits .. string.sub(lease, 14))
  -- Whichever server its worker talks to.
  call('PUBLISH', S, 'cancel' .. n .. string.sub(lease, 1, 12))
  return { now, state, n .. string.sub(lease, 1, 12) }
elseif state == 1 or state == 2 then
  local progress, x = call('HGET', P, n), extras(n)
  call('ZREM', state == 2 and R or W, member)
  drop_key(n, x)
  remove(n, x)
  call('HINCRBY', S, 'cancelled', 1)
  if progress and string.byte(progress, 17) == 1 then
    call('HINCRBY', S, 'retried_finished', 1)
  end
  used()
end
return { now, state }
