-- What time has made due in a queue: promotes, ends its pause, and tells which leases and deadlines are over.
-- ARGV: 2 how many of each at most, 3 how many leases to pass over.
-- Reply: now, jobs available (0: none was added), promoted, the first times (-1: none) of scheduled jobs, leases after those
--   told, deadlines after those told, the end of the pause and finished keys, the time of the oldest death; jobs on
--   their way to other queues; leases that are over (number, time); deadlines that are over (number, time); the breakers
--   of the work and of the dead letters; when the last probes were handed out; when the first of those kept was done.
local limit, passed_over = tonumber(ARGV[2]), tonumber(ARGV[3])

local function first(key, index)
  local entry = call('ZRANGE', key, index, index, 'WITHSCORES')
  return entry[2] and tonumber(entry[2]) or -1
end

local function over(key, from)
  local entries = call('ZRANGE', key, '-inf', now, 'BYSCORE', 'LIMIT', from, limit, 'WITHSCORES')
  local told = {}
  for i = 1, #entries, 2 do
    told[#told + 1] = { entries[i], tonumber(entries[i + 1]) }
  end
  return told
end

local function oldest_death()
  local entry = call('ZRANGE', D, 0, 0)
  local record = entry[1] and call('HGET', G, entry[1])
  return record and struct.unpack('>I8', record, 10) or -1
end

local promoted = promote(limit)
local ends = pause()
local resumed = ends and ends >= 0 and ends <= now
if resumed then
  call('HDEL', S, 'pause', 'pause_reason')
  ends = nil
  used()
end
local told = resumed and hint(math.huge) or promoted > 0 and hint(promoted) or 0
local leases, deadlines = over(L, passed_over), over(E, 0)
local probes = {}
local out = call('ZRANGE', U, 0, limit - 1, 'REV', 'WITHSCORES')
for i = 2, #out, 2 do
  probes[#probes + 1] = tonumber(out[i])
end
return {
  now, told, promoted,
  first(W, 0), first(L, passed_over + #leases), first(E, #deadlines), ends and ends >= 0 and ends or -1, first(F, 0),
  oldest_death(), call('HLEN', M), leases, deadlines, breaker('work'), breaker('graves'), probes,
  first(Z, 0),
}
