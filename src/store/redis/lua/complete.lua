-- Ack where the queue keeps jobs that are done: with their history and their result. Repeat-safe by the lease.
-- ARGV: 2 milliseconds for which a finished job's key is held, 3 so many of those at most, then for each 8: number, lease,
--   progress, sequence of the attempt (4 bytes), attempt, sequence of one to forget (empty: none), result (empty: none), '1'
--   if it was retried.
-- Reply: now, then for each: 0 done, 1 the lease is not what it was.
local retention, keys_max = tonumber(ARGV[2]), tonumber(ARGV[3])

local done = false

local function complete(at)
  local n, lease, progress, seq, attempt, forget, result, retried = unpack(ARGV, at, at + 7)
  if call('HGET', O, n) ~= lease then
    return 1
  end
  local x = extras(n)
  end_lease(n, lease)
  succeeded(lease)
  done = true
  finish_key(n, x, retention, keys_max)
  if x and x.deadline > 0 then
    call('ZREM', E, n)
  end
  call('HSET', P, n, progress)
  call('HSET', H, n .. seq, attempt)
  if forget ~= '' then
    call('HDEL', H, n .. forget)
  end
  if result ~= '' then
    call('HSET', Q, n, result)
  end
  call('ZADD', Z, now, n)
  call('HINCRBY', S, 'completed', 1)
  if retried == '1' then
    call('HINCRBY', S, 'successful_retries', 1)
    call('HINCRBY', S, 'retried_finished', 1)
  end
  return 0
end

local reply = { now }
for at = 4, #ARGV, 8 do
  reply[#reply + 1] = complete(at)
end
if done then
  used_well()
end
return reply
