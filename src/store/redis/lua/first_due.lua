-- When time next makes something due in a queue. Reads only.
-- Reply: now, the first times (-1: none) of scheduled jobs, leases, deadlines, the end of the pause; the time of the oldest
--   death; jobs on their way to other queues.
local function first(key)
  local entry = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return entry[2] and tonumber(entry[2]) or -1
end

local oldest = call('ZRANGE', D, 0, 0)
local death = oldest[1] and call('HGET', G, oldest[1])
return {
  now, first(W), first(L), first(E), pause() or -1, death and struct.unpack('>I8', death, 10) or -1,
  call('HLEN', M),
}
