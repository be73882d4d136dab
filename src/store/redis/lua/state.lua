-- A queue's depths and counters. Reads only.
-- ARGV: from 2 on, the names of the counters.
-- Reply: now, its number (empty: it was forgotten), when it was used, deaths ever, end of the pause and its reason (empty:
--   none), ready, scheduled, leased, completed, dead, overflow, finished keys, jobs on their way out, the oldest ready time of all
--   levels (-1: none), the breaker of the work, then the counters.
local head = call('HMGET', S, 'number', 'used', 'deaths', 'pause', 'pause_reason')

-- One look for each level in use, which are at most 256.
local function oldest_ready()
  local oldest, above = -1, '-inf'
  while true do
    local first = call('ZRANGE', R, above, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    if not first[2] then
      return oldest
    end
    local at = first[2] % LEVEL
    oldest = oldest < 0 and at or math.min(oldest, at)
    above = string.format('%.0f', (math.floor(first[2] / LEVEL) + 1) * LEVEL)
  end
end

local reply = {
  now, head[1] or '', tonumber(head[2] or 0), tonumber(head[3] or 0), head[4] or '', head[5] or '',
  call('ZCARD', R), call('ZCARD', W), call('ZCARD', L), call('ZCARD', Z), call('ZCARD', D), call('ZCARD', V), call('ZCARD', F),
  call('HLEN', M), oldest_ready(), breaker('work'),
}
for _, value in ipairs(call('HMGET', S, unpack(ARGV, 2))) do
  reply[#reply + 1] = value and tonumber(value) or 0
end
return reply
