-- What has to be known to judge deliveries. Reads only.
-- ARGV: from 2 on, numbers.
-- Reply: now, the breakers of the work and of the dead letters, what is counted of the work (tally, failures, successes),
--   then for each: lease, record, progress, last failure, and where there is no lease the last attempt.
local reply = { now, breaker('work'), breaker('graves'), counted() }
for at = 2, #ARGV do
  local n = ARGV[at]
  local lease, record, progress = call('HGET', O, n), call('HGET', J, n), call('HGET', P, n)
  local failure, attempt
  if progress then
    local failures = call('HMGET', H, n .. '1', n .. '0')
    failure = failures[1] or failures[2]
    if not lease then
      attempt = call('HGET', H, n .. string.sub(progress, 13, 16))
    end
  end
  reply[#reply + 1] = { lease or '', record or '', progress or '', failure or '', attempt or '' }
end
return reply
