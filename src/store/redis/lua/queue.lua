-- How a queue begins and ends. KEYS: 1 state, then all other keys of the queue. ARGV: 1 verb, 2 generation, 3 store time in ms.
-- adopt: a queue that the catalogue has gets its generation, unless it has one; what another left closed is removed. Reply: 1 it is new, 0 it has one; its
--   generation ('': it is closed, and the catalogue may still have it).
-- close: ARGV 4 the time in ms since which it was not written to, 5 position of the first key that must be empty.
--   Nothing is read or written after it. Reply: 1, or 0: it stays.
-- remove: a closed one is gone.
local call, verb, S = redis.call, ARGV[1], KEYS[1]
local generation, closed, used = unpack(call('HMGET', S, 'generation', 'closed', 'used'))
if verb == 'adopt' then
  if closed == ARGV[2] then return { 0, '' } end
  if generation then return { 0, generation } end
  if closed then call('DEL', unpack(KEYS)) end
  call('HSET', S, 'generation', ARGV[2], 'used', ARGV[3])
  return { 1, ARGV[2] }
elseif verb == 'close' then
  if closed == ARGV[2] then return 1 end
  if generation ~= ARGV[2] or tonumber(used or 0) >= tonumber(ARGV[4]) or call('EXISTS', unpack(KEYS, ARGV[5])) > 0 then
    return 0
  end
  call('HDEL', S, 'generation')
  call('HSET', S, 'closed', ARGV[2])
  return 1
end
if closed == ARGV[2] then call('DEL', unpack(KEYS)) end
return 1
