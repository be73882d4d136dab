-- The first positions of ready and keyed become leases, within the rules handed in. Holds no policy.
-- KEYS: those of lib.lua, then 7 leases, 8 leased, 9 leased_by_group, 10 probe, 11 jobs, 12 histories and failures, 13 bodies,
--   14 meters.
-- ARGV: 1–3 see lib.lua, 4 jobs (at most 1,000), 5 bytes, 6 '1': the first fits in any case, 7 how many to promote of each
--   index, 8 start in ms, 9 start 6 bytes and duration 4, 10 expiry in ms, 11 nonces (8 bytes each), 12 tail of the leases, then
--   rules, see `packed_rule`: of the whole queue (group 65535), of group 0, of others.
-- A Job begins with its size in a reply 4, traits 1; a History with size 4, traits 1, deliveries 4, tries 4.
-- A lease: delivery 4, nonce 8, flags 1 (of the rule, Job and History), epoch 4, start 6, duration 4, attempt 4, position 16,
--   tail. Probes: epoch 4 and number 6, by start. Meters: see keys.rs.
-- Reply: 0, ready jobs left, promoted, first due time (-1: none, or as many were taken as asked), 1 if the bytes were not enough,
--   groups that changed or need a rule, group and kind and end (-1: not known) of each stop, then for each job: its lease without
--   the tail, Job, History, last Failure, Body; each nil where there is none. { -1 }: the version of the queue is another.
local LEASES, LEASED, BY_GROUP, PROBE, JOBS, HISTORIES, BODIES, METERS = unpack(KEYS, 7, 14)
local NEW, NO_JOB, WHOLE, BODY = string.rep('\0', 13), string.rep('\0', 6), '\255\255', 8
local MOST, HUGE, RULES = 2 ^ 32 - 1, math.huge, 12
local now, wanted, room, groups, rules, changed, stops = tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[5]), {}, {}, {}, {}
if wanted > 1000 or #ARGV[11] < 8 * wanted then return redis.error_reply('ERR malformed take') end
for i = RULES + 1, #ARGV do groups[i - RULES] = sub(ARGV[i], 1, 2) end
local state = call('HMGET', S, 'generation', 'keyed', unpack(groups))
if state[1] ~= ARGV[1] then return { -2 } end
if clock_is_off() then return { -3 } end
local function id(group) return (struct.unpack('>I2', group)) end

-- How many jobs a rule lets through (`left`), what stops more, and until when.
local function admit(rule, limits)
  local most, probes, since, rate, burst, ramp, ramp_burst, patience = struct.unpack('>dddddddd', limits)
  rule.limited, rule.probing, rule.patience = true, probes < HUGE, ramp < HUGE and patience
  local function limit(left, by, until_ms)
    left = math.max(left, 0)
    if left < rule.left then rule.left, rule.by, rule.until_ms = left, by, until_ms end
  end
  if most < HUGE or rule.patience then
    local group, all = rule.group, call('ZCARD', LEASED)
    rule.leased = group == WHOLE and all or group == NONE and all - call('ZCARD', BY_GROUP)
      or call('ZCOUNT', BY_GROUP, id(group), id(group))
    limit(most - rule.leased, 1, -1)
  end
  if rule.probing then
    local live, oldest = 0, probes > 0 and now
    local started = call('ZRANGE', PROBE, string.format('(%.0f', since), '+inf', 'BYSCORE', 'WITHSCORES')
    for i = 1, #started, 2 do
      if sub(started[i], 1, 4) == rule.epoch then live, oldest = live + 1, live == 0 and started[i + 1] or oldest end
    end
    limit(probes - live, 2, oldest and oldest + math.max(now - since, 0) or -1)
  end
  if rate == HUGE and not rule.patience then return end
  local at, tokens, ramp_tokens, empty_at, held_at, most_leased, epoch = now, HUGE, HUGE, 0, 0, 0, rule.epoch
  local meter = call('HGET', METERS, rule.group)
  if meter then at, tokens, ramp_tokens, empty_at, held_at, most_leased, epoch = struct.unpack('>ddddddc4', meter) end
  -- The times of servers differ a little: then no time has passed. A clock that stepped back is followed.
  if at > now + 1000 then at = now end
  local function refill(left, per_second, most_tokens, by)
    if per_second == HUGE then return HUGE end
    left = math.min(left + math.max(0, now - at) * per_second / 1000, most_tokens)
    local whole = math.floor(left + 1e-6)
    local wait = math.ceil((whole + 1 - left) * 1000 / per_second - 1e-6)
    limit(whole, by, wait < 1e12 and now + wait or -1)
    return left
  end
  rule.meter = { math.max(at, now), refill(tokens, rate, burst, 3), refill(ramp_tokens, ramp, ramp_burst, 4), empty_at, held_at,
    epoch == rule.epoch and most_leased or 0, rule.epoch }
end

for i, group in ipairs(groups) do
  local rule = ARGV[RULES + i]
  if sub(rule, 3, 15) == (state[i + 2] or NEW) then
    local over = sub(rule, 17, 22)
    rules[group] = { group = group, epoch = sub(rule, 4, 7), flags = byte(rule, 16), over = over ~= NO_JOB and over, left = HUGE, taken = 0 }
    if #rule > 22 then admit(rules[group], sub(rule, 23)) end
  elseif i == 1 then
    return { -1 }
  else
    rules[group], changed[#changed + 1] = false, id(group)
  end
end
local promoted, promoted_ready = promote(ARGV[7])
derive_heads()
local whole, only, keyed, line, from = rules[WHOLE], rules[NONE], state[2] or next(touched), {}, {}
local most, head = math.min(wanted, whole.left), keyed and call('ZRANGE', HEADS, '0', '0', 'WITHSCORES') or {}
if #groups == 2 and not head[1] then -- the usual case: one order, nothing to compare
  most = math.min(most, only and only.left or 0)
  if most > 0 then line = call('ZRANGE', READY, '0', only.over and most or most - 1) end
  for i = #line, only and only.over and #line > 1 and 1 or #line + 1, -1 do
    if sub(line[i], -7, -2) == only.over then table.remove(line, i) end
  end
  line[most + 1] = nil
else
  -- Rules by their next job: the first is the last.
  local sources, opened = {}, 0
  local function advance(rule)
    local position
    repeat
      rule.read = rule.read + 1
      if not rule.list[rule.read] then -- 2, 8, 32 … positions at a time
        rule.list = rule.left > rule.chosen and positions(rule.group, rule.seen, rule.part) or {}
        rule.read, rule.seen, rule.part = 1, rule.seen + rule.part, rule.part * 4
      end
      position = rule.list[rule.read]
    until not position or sub(position, -7, -2) ~= rule.over
    if not position or rule.left <= rule.chosen then return end
    local rank, ready_at, number = struct.unpack('>I1I6I6', position, #position - 13)
    rule.position, rule.first, rule.number = position, rank * 2 ^ 45 + ready_at, number
    local low, high = 1, #sources + 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      local other = sources[middle]
      local earlier = rule.first < other.first or rule.first == other.first and number < other.number
      if earlier then low = middle + 1 else high = middle end
    end
    table.insert(sources, low, rule)
  end
  local function open(rule)
    rule.chosen, rule.read, rule.seen, rule.part, rule.list = 0, 0, 0, 2, {}
    if rule.over and not positions(rule.group, 0, 2)[2] then rule.over = nil end
    advance(rule)
  end
  for i = 2, #groups do if rules[groups[i]] then open(rules[groups[i]]) end end
  while #line < most do
    while head[1] and (not sources[1] or tonumber(head[2]) <= sources[#sources].first) do
      local version = rules[head[1]] == nil and (call('HGET', S, head[1]) or NEW)
      if version and byte(version) == 0 then
        open({ group = head[1], epoch = sub(version, 2, 5), flags = 0, left = HUGE, taken = 0 })
      elseif version then
        changed[#changed + 1] = id(head[1])
      end
      opened = opened + 1
      head = call('ZRANGE', HEADS, opened, opened, 'WITHSCORES')
    end
    local rule = table.remove(sources)
    if not rule then break end
    line[#line + 1], from[#line + 1], rule.chosen = rule.position, rule, rule.chosen + 1
    advance(rule)
  end
end

local numbers, old = {}, {}
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

local reply, full, leases, expiries = { 0, 0, promoted, -1, 0, false, false }, 0, {}, {}
local gone_ready, gone_keyed, by_group, probes = {}, {}, {}, {}
for i, number in ipairs(numbers) do
  local job, history, rule, position = jobs[i], histories[number], from[i] or only, line[i]
  local size, traits, more, more_traits, deliveries, tries = 0, 0, 0, 0, 0, 0
  if job and #job > 4 then size, traits = struct.unpack('>I4I1', job) end
  if history and #history > 12 then more, more_traits, deliveries, tries = struct.unpack('>I4I1I4I4', history) end
  if size + more > room and (i > 1 or ARGV[6] ~= '1') then
    full = 1
    break
  end
  room = math.max(0, room - size - more)
  local all, gone = bit.bor(rule.flags, traits, more_traits), gone_ready
  if #position > 14 then
    gone, by_group[#by_group + 1], by_group[#by_group + 2] = gone_keyed, id(rule.group), number
    touch(rule.group, -1)
  end
  local lease = struct.pack('>I4c8I1', math.min(deliveries + 1, MOST), sub(ARGV[11], 8 * i - 7, 8 * i), all) .. rule.epoch .. ARGV[9]
    .. struct.pack('>I4', math.min(tries + 1, MOST)) .. sub(NONE, #position - 13) .. position
  gone[#gone + 1], rule.taken, whole.taken = position, rule.taken + 1, i
  leases[2 * i - 1], leases[2 * i], expiries[2 * i - 1], expiries[2 * i] = number, lease .. ARGV[12], ARGV[10], number
  if rule.probing then probes[#probes + 1], probes[#probes + 2] = ARGV[8], rule.epoch .. number end
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = lease, job, history or false, failures[number] or false
  reply[at + 5] = bit.band(all, BODY) > 0 and call('HGET', BODIES, number)
end
if whole.taken > 0 then
  if gone_ready[1] then call('ZREM', READY, unpack(gone_ready)) end
  if gone_keyed[1] then call('ZREM', KEYED, unpack(gone_keyed)) end
  call('HSET', LEASES, unpack(leases))
  call('ZADD', LEASED, unpack(expiries))
  if by_group[1] then call('ZADD', BY_GROUP, unpack(by_group)) end
  if probes[1] then call('ZADD', PROBE, unpack(probes)) end
  derive_heads()
end
if whole.taken > 0 or promoted > 0 then call('HSET', S, 'used', ARGV[2]) end
if whole.taken < wanted then
  local a, b = call('ZRANGE', SCHEDULED, '0', '0', 'WITHSCORES')[2], call('ZRANGE', RETRYING, '0', '0', 'WITHSCORES')[2]
  reply[4] = math.min(tonumber(a or b or -1), tonumber(b or a or -1))
end
local left = call('ZCARD', READY)
local ready = left + (keyed and call('EXISTS', HEADS) * call('ZCARD', KEYED) or 0)
-- What was promoted and is left is news to the other servers if nothing was ready before.
if left > 0 and left + #gone_ready == promoted_ready or has_new_group() then call('PUBLISH', S, ready) end
for i, group in ipairs(groups) do
  local rule = rules[group]
  if rule and rule.limited then
    local has_more, meter = i == 1 and ready > 0 or i > 1 and positions(group, 0, 1)[1], rule.meter
    local stopped = has_more and whole.taken < wanted and rule.taken >= rule.left
    if stopped then stops[#stops + 1], stops[#stops + 2], stops[#stops + 3] = id(group), rule.by, rule.until_ms end
    if meter then
      meter[2], meter[3] = meter[2] - rule.taken, meter[3] - rule.taken
      if rule.patience then
        meter[6] = math.max(meter[6], rule.leased + rule.taken)
        if not has_more then meter[4] = now end
        if stopped and rule.by % 3 == 1 and now - meter[4] > rule.patience then meter[5] = now end
      end
      -- pcall: where nothing was taken this may be the first write, and a full Redis refuses it.
      redis.pcall('HSET', METERS, group, struct.pack('>ddddddc4', unpack(meter)))
    end
  end
end
reply[2], reply[5], reply[6], reply[7] = ready, full, changed[1] and changed or false, stops[1] and stops or false
return reply
