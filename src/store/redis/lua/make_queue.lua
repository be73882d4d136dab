-- Gives a queue its number.
-- KEYS: names to numbers, numbers to names, the last number given, and the counters of forgotten queues.
-- ARGV: 1 name, 2 how many queues there may be, 3 the highest number.
-- Reply: the number; 0: there are too many queues.
local number = redis.call('HGET', KEYS[1], ARGV[1])
if number then
  return tonumber(number)
end
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[2]) then
  return 0
end
-- Numbers go round: one in use is passed over, and there are many more of them than queues.
local last = tonumber(redis.call('GET', KEYS[3]) or 0)
repeat
  last = last % tonumber(ARGV[3]) + 1
until redis.call('HEXISTS', KEYS[2], last) == 0
redis.call('SET', KEYS[3], last)
redis.call('HSET', KEYS[1], ARGV[1], last)
redis.call('HSET', KEYS[2], last, ARGV[1])
return last
