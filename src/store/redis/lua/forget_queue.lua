-- Second step of forgetting a queue: its name and number are free, its counters are kept in sum. Repeat-safe by the number.
-- KEYS: names to numbers, numbers to names, the last number given, and the counters of forgotten queues.
-- ARGV: 1 name, 2 number, then names of counters and their values.
-- Reply: 1, or 0 if it had been forgotten.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[2])
for i = 3, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[4], ARGV[i], ARGV[i + 1])
end
return 1
