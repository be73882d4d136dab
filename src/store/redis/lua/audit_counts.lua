-- How much there is in a queue, for an audit. Reads only.
-- Reply: now, its number (empty: it has none), deaths ever, the last death (0: none), jobs on their way out, jobs, ready,
--   scheduled, leased, leases, dead, deaths that are kept, overflow, completed, what its breaker counts (tally, failures,
--   successes), then the types of error and their counts.
local last = call('ZRANGE', D, 0, 0, 'REV', 'WITHSCORES')
local tally, fails, wins = counted()
local reply = {
  now, call('HGET', S, 'number') or '', tonumber(call('HGET', S, 'deaths') or 0), tonumber(last[2] or 0), call('HLEN', M),
  call('HLEN', J), call('ZCARD', R), call('ZCARD', W), call('ZCARD', L), call('HLEN', O), call('ZCARD', D),
  call('HLEN', G), call('ZCARD', V), call('ZCARD', Z), tally, fails, wins,
}
for _, item in ipairs(call('HGETALL', T)) do
  reply[#reply + 1] = item
end
return reply
