-- Jobs that are done and have been kept for long enough go; their keys are held for as long as those say.
-- ARGV: 2 done until when, 3 how many at most.
-- Reply: now, how many went, when the next of them was done (-1: none).
local done = call('ZRANGE', Z, '-inf', ARGV[2], 'BYSCORE', 'LIMIT', 0, ARGV[3])
for _, n in ipairs(done) do
  remove(n, extras(n))
  call('HDEL', Q, n)
end
if #done > 0 then
  call('ZREM', Z, unpack(done))
  used()
end
local first = call('ZRANGE', Z, 0, 0, 'WITHSCORES')
return { now, #done, first[2] and tonumber(first[2]) or -1 }
