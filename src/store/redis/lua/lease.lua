-- The positions in `line` become leases, under the rules in `from` or else `only`. Holds no policy.
-- KEYS: behind those of lib.lua or groups.lua leases, leased, jobs, histories and failures, bodies.
-- ARGV: 1–3 see lib.lua, 4 jobs (at most 1,000), 5 bytes, 6 '1': the first fits in any case, 7 how many to promote of each
--   index, 8 start in ms, 9 start 6 bytes and duration 4, 10 expiry in ms, 11 nonces (8 bytes each), 12 tail of the leases, then
--   rules, see `packed_rule`: of the whole queue (group 65535), of group 0, of others.
-- A Job begins with its size in a reply 4, traits 1; a History with size 4, traits 1, deliveries 4, tries 4.
-- A lease: delivery 4, nonce 8, flags 1 (of the rule, Job and History), epoch 4, start 6, duration 4, attempt 4, position 16,
--   tail. Probes: epoch 4 and number 6, by start. Meters: see keys.rs.
-- Reply: 0, ready jobs left, promoted, first due time (-1: none, or as many were taken as asked), 1 if the bytes were not enough,
--   groups that changed or need a rule, group and kind and end (-1: not known) of each stop, then for each job: its lease without
--   the tail, Job, History, last Failure, Body; each nil where there is none. { -1 }: the version of the queue is another.
local LEASES, LEASED, JOBS, HISTORIES, BODIES = unpack(KEYS, grouped and 7 or 5)
local BODY, MOST, room, numbers, old = 8, 2 ^ 32 - 1, tonumber(ARGV[5]), {}, {}
for i, position in ipairs(line) do
  local number = sub(position, -7, -2)
  numbers[i] = number
  if byte(position, -1) % 2 == 1 then
    old[#old + 1], old[#old + 2], old[#old + 3] = number, number .. '\1f', number .. '\0f'
  end
end
local jobs, histories, failures = numbers[1] and call('HMGET', JOBS, unpack(numbers)), {}, {}
if old[1] then
  local found = call('HMGET', HISTORIES, unpack(old))
  for i = 1, #old, 3 do histories[old[i]], failures[old[i]] = found[i], found[i + 1] or found[i + 2] end
end

local reply, count, gone, leases, expiries = { 0, 0, promoted, -1, 0, false, false }, 0, {}, {}, {}
for i, number in ipairs(numbers) do
  local job, history, position, rule = jobs[i], histories[number], line[i], from[i] or only
  local size, traits, more, more_traits, deliveries, tries = 0, 0, 0, 0, 0, 0
  if job and #job > 4 then size, traits = struct.unpack('>I4I1', job) end
  if history and #history > 12 then more, more_traits, deliveries, tries = struct.unpack('>I4I1I4I4', history) end
  if size + more > room and (i > 1 or ARGV[6] ~= '1') then
    reply[5] = 1
    break
  end
  room = math.max(0, room - size - more)
  local all = bit.bor(rule.flags, traits, more_traits)
  local lease = struct.pack('>I4c8I1', math.min(deliveries + 1, MOST), sub(ARGV[11], 8 * i - 7, 8 * i), all) .. rule.epoch .. ARGV[9]
    .. struct.pack('>I4', math.min(tries + 1, MOST)) .. (#position == 14 and '\0\0' or '') .. position
  if not (grouped and took(rule, position, number)) then gone[#gone + 1] = position end
  count, leases[2 * i - 1], leases[2 * i], expiries[2 * i - 1], expiries[2 * i] = i, number, lease .. ARGV[12], ARGV[10], number
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = lease, job, history or false, failures[number] or false
  reply[at + 5] = bit.band(all, BODY) > 0 and call('HGET', BODIES, number)
end
if count > 0 then
  if gone[1] then call('ZREM', READY, unpack(gone)) end
  if grouped then write_keyed() end
  call('HSET', LEASES, unpack(leases))
  call('ZADD', LEASED, unpack(expiries))
end
if count > 0 or promoted > 0 then call('HSET', S, 'used', ARGV[2]) end
if count < wanted then
  local a, b = call('ZRANGE', SCHEDULED, '0', '0', 'WITHSCORES')[2], call('ZRANGE', RETRYING, '0', '0', 'WITHSCORES')[2]
  reply[4] = math.min(tonumber(a or b or -1), tonumber(b or a or -1))
end
local left = call('ZCARD', READY)
local ready = grouped and end_rules(left) or left
-- What was promoted and is left is news to the other servers if nothing was ready before.
if left > 0 and left + #gone == promoted_ready or grouped and has_new_group() then call('PUBLISH', S, ready) end
reply[2], reply[6], reply[7] = ready, changed[1] and changed or false, stops[1] and stops or false
return reply
