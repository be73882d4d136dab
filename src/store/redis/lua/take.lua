-- The first positions of ready become leases, within the limits handed in. Holds no policy.
-- KEYS: those of lib.lua, then 5 leases, 6 leased, 7 probe, 8 jobs, 9 histories and failures, 10 bodies.
-- ARGV: 1–3 see lib.lua, 4 jobs (at most 1,000), 5 bytes, 6 '1': the first fits in any case, 7 how many to promote of each
--   index, 8 version of the whole queue, 9 version of group 0, 10 flags, 11 number to pass over while there is another ('':
--   none), 12 most probes ('': leases are none), 13 of those started after, 14 start in ms, 15 start 6 bytes and duration 4,
--   16 expiry in ms, 17 nonces (8 bytes each), 18 tail of the leases.
-- A Job begins with its size in a reply 4, traits 1; a History with size 4, traits 1, deliveries 4, tries 4.
-- A lease: delivery 4, nonce 8, flags 1 (of the rule, Job and History), epoch 4, start 6, duration 4, attempt 4, position 16,
--   tail. Probes: epoch 4 and number 6, by start.
-- Reply: 0, ready jobs left, promoted, first due time (-1: none, or as many were taken as asked), 1 if the bytes were not
--   enough, start of the oldest probe (-1: there is room for more), then for each job: its lease without the tail, Job,
--   History, last Failure (the only one is the first), Body; each nil where there is none. { -1 }: the version of the queue or of group 0 is another.
local LEASES, LEASED, PROBE, JOBS, HISTORIES, BODIES = unpack(KEYS, 5, 10)
local NEW, BODY, MOST = string.rep('\0', 13), 8, 2 ^ 32 - 1
local wanted, room, flags = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[10])
if wanted > 1000 or #ARGV[17] < 8 * wanted then return redis.error_reply('ERR malformed take') end
local state = call('HMGET', S, 'generation', '\255\255', '\0\0')
if state[1] ~= ARGV[1] then return { -2 } end
if clock_is_off() then return { -3 } end
if (state[2] or NEW) ~= ARGV[8] or (state[3] or NEW) ~= ARGV[9] then return { -1 } end

local promoted = promote(ARGV[7])
local epoch, most, oldest = sub(ARGV[9], 2, 5), wanted, -1
if ARGV[12] ~= '' then
  local live, first = 0, -1
  local started = call('ZRANGE', PROBE, '(' .. ARGV[13], '+inf', 'BYSCORE', 'WITHSCORES')
  for i = 1, #started, 2 do
    if sub(started[i], 1, 4) == epoch then
      live = live + 1
      if first == -1 then first = tonumber(started[i + 1]) end
    end
  end
  most = math.max(0, math.min(wanted, ARGV[12] - live))
  if live >= tonumber(ARGV[12]) then oldest = first end
end

local line, numbers, old = {}, {}, {}
if most > 0 then
  local first = call('ZRANGE', READY, '0', ARGV[11] == '' and most - 1 or most)
  for _, position in ipairs(first) do
    local number = sub(position, -7, -2)
    if #line < most and (number ~= ARGV[11] or #first == 1) then
      line[#line + 1], numbers[#line + 1] = position, number
      if string.byte(position, -1) % 2 == 1 then
        old[#old + 1], old[#old + 2], old[#old + 3] = number, number .. '\1f', number .. '\0f'
      end
    end
  end
end
local jobs, histories, failures = numbers[1] and call('HMGET', JOBS, unpack(numbers)), {}, {}
if old[1] then
  local found = call('HMGET', HISTORIES, unpack(old))
  for i = 1, #old, 3 do histories[old[i]], failures[old[i]] = found[i], found[i + 1] or found[i + 2] end
end

local reply, full, taken, leases, expiries, probes = { 0, 0, promoted, -1, 0, oldest }, 0, {}, {}, {}, {}
for i, number in ipairs(numbers) do
  local job, history = jobs[i], histories[number]
  local size, traits, more, more_traits, deliveries, tries = 0, 0, 0, 0, 0, 0
  if job and #job > 4 then size, traits = struct.unpack('>I4I1', job) end
  if history and #history > 12 then more, more_traits, deliveries, tries = struct.unpack('>I4I1I4I4', history) end
  if size + more > room and (i > 1 or ARGV[6] ~= '1') then
    full = 1
    break
  end
  room = math.max(0, room - size - more)
  local all = bit.bor(flags, traits, more_traits)
  local lease = struct.pack('>I4c8I1', math.min(deliveries + 1, MOST), sub(ARGV[17], 8 * i - 7, 8 * i), all) .. epoch .. ARGV[15]
    .. struct.pack('>I4', math.min(tries + 1, MOST)) .. '\0\0' .. line[i]
  taken[i], leases[2 * i - 1], leases[2 * i] = line[i], number, lease .. ARGV[18]
  expiries[2 * i - 1], expiries[2 * i] = ARGV[16], number
  if ARGV[12] ~= '' then probes[#probes + 1], probes[#probes + 2] = ARGV[14], epoch .. number end
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = lease, job, history or false, failures[number] or false
  reply[at + 5] = bit.band(all, BODY) > 0 and call('HGET', BODIES, number)
end
if taken[1] then
  call('ZREM', READY, unpack(taken))
  call('HSET', LEASES, unpack(leases))
  call('ZADD', LEASED, unpack(expiries))
  if probes[1] then call('ZADD', PROBE, unpack(probes)) end
end
if taken[1] or promoted > 0 then call('HSET', S, 'used', ARGV[2]) end
if #taken < wanted then
  local a, b = call('ZRANGE', SCHEDULED, '0', '0', 'WITHSCORES')[2], call('ZRANGE', RETRYING, '0', '0', 'WITHSCORES')[2]
  reply[4] = math.min(tonumber(a or b or -1), tonumber(b or a or -1))
end
local left = call('ZCARD', READY)
-- What was promoted and is left is news to the other servers if nothing was ready before.
if left > 0 and left + #taken == promoted then call('PUBLISH', S, left) end
reply[2], reply[5] = left, full
return reply
