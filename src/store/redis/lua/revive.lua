-- DEAD to READY in the same queue. Repeat-safe by the death.
-- ARGV: 2 '1': only tells what would happen, then for each 8: number, death, print, tie, level, progress, id as it is shown,
--   '1' to watch its deadline.
-- Reply: now, jobs available (0: none was added), then a code for each: 0 done, 1 it is not dead any more, 2 its key is taken.
local dry = ARGV[2] == '1'

local function key_taken(n, x)
  local entry = x and x.key ~= '' and call('HGET', K, x.key)
  return entry and string.sub(entry, 1, 6) ~= n and struct.unpack('>I8', entry, 39) == 0
end

local function revive(at)
  local n, death, print, tie, level, progress, id, watch = unpack(ARGV, at, at + 7)
  local record = call('HGET', G, n)
  if not record or struct.unpack('>I8', record) ~= tonumber(death) or call('HEXISTS', M, n) == 1 then
    return 1
  end
  local x = extras(n)
  if key_taken(n, x) then
    return 2
  end
  if dry then
    return 0
  end
  take_dead(n, tonumber(death))
  if x and x.key ~= '' then
    call('ZREM', F, x.key)
    call('HSET', K, x.key, n .. print .. struct.pack('>I8', 0) .. id)
  end
  if x and watch == '1' then
    call('ZADD', E, x.deadline, n)
  end
  call('HSET', P, n, progress)
  wait(tie, tonumber(level), now)
  call('HINCRBY', S, 'requeued', 1)
  return 0
end

local reply, done = { now, 0 }, 0
for at = 3, #ARGV, 8 do
  local code = revive(at)
  done = done + (code == 0 and not dry and 1 or 0)
  reply[#reply + 1] = code
end
if done > 0 then
  used()
  reply[2] = hint(done)
end
return reply
