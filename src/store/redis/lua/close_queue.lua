-- First step of forgetting a queue: one that is empty and unused takes nothing more in.
-- ARGV: 2 the queue's number, 3 milliseconds for which it must have been unused, then the names of the counters.
-- Reply: now, 0 (it stays) or 1, then the counters.
if call('HGET', S, 'number') ~= ARGV[2] then
  return { now, 0 }
end
if call('HEXISTS', S, 'closing') == 0 then
  local held = call('ZCARD', R) + call('ZCARD', W) + call('ZCARD', L) + call('ZCARD', D) + call('ZCARD', F)
    + call('ZCARD', A) + call('HLEN', N) + call('ZCARD', Z)
  local used_at = tonumber(call('HGET', S, 'used') or 0)
  local function at_rest(name)
    local guard = breaker(name)
    return guard == '' or string.byte(guard) == 1
  end
  if held > 0 or pause() or not at_rest('work') or not at_rest('graves') or now - used_at < tonumber(ARGV[3]) then
    return { now, 0 }
  end
  call('HSET', S, 'closing', 1)
end
local reply = { now, 1 }
for _, value in ipairs(call('HMGET', S, unpack(ARGV, 4))) do
  reply[#reply + 1] = value and tonumber(value) or 0
end
return reply
