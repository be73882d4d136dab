-- Ack: jobs are done. Repeat-safe by the lease.
-- ARGV: 2 milliseconds for which a finished job's key is held, 3 so many of those at most, then for each job its number
--   and the delivery and nonce of the lease.
-- Reply: now, then for each a list: 0 done, with the breaker's transitions when it was handed out and whether it was a
--   probe; 1 gone already; 2 the lease is lost; 3 and the queue that it went to; 4 and how its last delivery ended, if the
--   job is done and kept.
local retention, keys_max = tonumber(ARGV[2]), tonumber(ARGV[3])

local reply, done, retried = { now }, 0, 0
for at = 4, #ARGV, 2 do
  local n, token = ARGV[at], ARGV[at + 1]
  local lease = call('HGET', O, n)
  local item = { 2 }
  if lease and string.sub(lease, 1, 12) == token then
    local x = extras(n)
    end_lease(n, lease)
    finish_key(n, x, retention, keys_max)
    remove(n, x)
    succeeded(lease)
    done = done + 1
    retried = retried + (has(lease, RETRIED) and 1 or 0)
    item = { 0, (struct.unpack('>I8', lease, 66)), has(lease, PROBE) and 1 or 0 }
  elseif not lease and call('HEXISTS', J, n) == 0 then
    local to = call('HGET', N, n)
    item = to and { 3, to } or { 1 }
  end
  if not lease and call('ZSCORE', Z, n) then
    local progress = call('HGET', P, n)
    item = { 4, call('HGET', H, n .. string.sub(progress, 13, 16)) or '' }
  end
  reply[#reply + 1] = item
end
if done > 0 then
  call('HINCRBY', S, 'completed', done)
  if retried > 0 then
    call('HINCRBY', S, 'successful_retries', retried)
    call('HINCRBY', S, 'retried_finished', retried)
  end
  used_well()
end
return reply
