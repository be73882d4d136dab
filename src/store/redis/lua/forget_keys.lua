-- Keys of finished jobs whose time is over are free; where jobs went long ago is forgotten, and so are marks of arrivals.
-- ARGV: 2 how many of each at most, 3 milliseconds for which it is known where jobs went, 4 for which marks are kept.
-- Reply: now, how many keys, jobs and marks there were.
local keys = call('ZRANGE', F, '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[2])
if #keys > 0 then
  call('ZREM', F, unpack(keys))
  call('HDEL', K, unpack(keys))
end
local moved = call('ZRANGE', Y, '-inf', now - tonumber(ARGV[3]), 'BYSCORE', 'LIMIT', 0, ARGV[2])
if #moved > 0 then
  call('ZREM', Y, unpack(moved))
  call('HDEL', N, unpack(moved))
end
local marks = call('ZRANGE', A, '-inf', now - tonumber(ARGV[4]), 'BYSCORE', 'LIMIT', 0, ARGV[2])
if #marks > 0 then
  call('ZREM', A, unpack(marks))
end
return { now, #keys, #moved, #marks }
