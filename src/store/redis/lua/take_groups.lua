-- Which jobs a take takes where groups or limits are in play. Goes on in lease.lua.
-- KEYS: those of groups.lua, 7–11 see lease.lua, 12 probe, 13 leased_by_group, 14 meters. ARGV: see lease.lua.
local LEASED, PROBE, BY_GROUP, METERS = KEYS[8], unpack(KEYS, 12, 14)
local WHOLE, NO_JOB, HUGE, RULES = '\255\255', sub(NEW, 1, 6), math.huge, 12
local now, wanted, groups, rules, stops, changed = tonumber(ARGV[2]), tonumber(ARGV[4]), {}, {}, {}, {}
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
    local number = id(rule.group)
    rule.leased = rule.group == WHOLE and call('ZCARD', LEASED) or number > 0 and call('ZCOUNT', BY_GROUP, number, number)
      or call('ZCARD', LEASED) - call('ZCARD', BY_GROUP)
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
  local at, tokens, ramp_tokens, empty_at, held_at, most_leased, version = now, HUGE, HUGE, 0, 0, 0, rule.version
  local meter = call('HGET', METERS, rule.group)
  if meter then at, tokens, ramp_tokens, empty_at, held_at, most_leased, version = struct.unpack('>ddddddc12', meter) end
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
    version == rule.version and most_leased or 0, rule.version }
end

for i, group in ipairs(groups) do
  local rule = ARGV[RULES + i]
  if sub(rule, 3, 15) == (state[i + 2] or NEW) then
    local over = sub(rule, 17, 22)
    rules[group] = { group = group, epoch = sub(rule, 4, 7), version = sub(rule, 4, 15), flags = byte(rule, 16),
      over = over ~= NO_JOB and over, left = HUGE, taken = 0, held = byte(rule, 3) > 1 }
    if #rule > 22 then admit(rules[group], sub(rule, 23)) end
  elseif i == 1 then
    return { -1 }
  else
    rules[group], changed[#changed + 1] = false, id(group)
  end
end
local promoted, promoted_ready = promote(ARGV[7])
derive_heads()
local whole, keyed, line, from, only = rules[WHOLE], state[2] or next(touched), {}, {}, nil
local most, heads, seen, part = math.min(wanted, whole.left), keyed and call('ZRANGE', HEADS, '0', '1', 'WITHSCORES') or {}, 2, 2

-- Rules by their next job: the first is the last.
local sources, at = {}, 1
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
-- Others when their heads come.
for i = 2, #groups do
  local rule = rules[groups[i]]
  if rule and (rule.held or groups[i] == NONE) then open(rule) end
end
while #line < most do
  while heads[at] and (not sources[1] or tonumber(heads[at + 1]) <= sources[#sources].first) do
    local rule = rules[heads[at]]
    local version = rule == nil and (call('HGET', S, heads[at]) or NEW)
    if rule then
      open(rule)
    elseif version and byte(version) == 0 then
      open({ group = heads[at], epoch = sub(version, 2, 5), flags = 0, left = HUGE, taken = 0 })
    elseif version then
      changed[#changed + 1] = id(heads[at])
    end
    at = at + 2
    if not heads[at] then -- 2, 8, 32 … at a time
      at, part = 1, part * 4
      heads, seen = call('ZRANGE', HEADS, seen, seen + part - 1, 'WITHSCORES'), seen + part
    end
  end
  local rule = table.remove(sources)
  if not rule then break end
  line[#line + 1], from[#line + 1], rule.chosen = rule.position, rule, rule.chosen + 1
  advance(rule)
end

local gone, by_group, probes = {}, {}, {}
-- A job was taken. Says whether its position was in keyed.
took = function(rule, position, number)
  rule.taken, whole.taken = rule.taken + 1, whole.taken + 1
  if rule.probing then probes[#probes + 1], probes[#probes + 2] = ARGV[8], rule.epoch .. number end
  if #position == 14 then return false end
  gone[#gone + 1], by_group[#by_group + 1], by_group[#by_group + 2] = position, id(rule.group), number
  touch(rule.group, -1)
  return true
end

-- Beside what lease.lua writes.
write_keyed = function()
  if gone[1] then call('ZREM', KEYED, unpack(gone)) end
  if by_group[1] then call('ZADD', BY_GROUP, unpack(by_group)) end
  if probes[1] then call('ZADD', PROBE, unpack(probes)) end
  derive_heads()
end

-- What stopped it, and the meters as they are then. `left`: positions in ready. Says how many are ready in all.
end_rules = function(left)
  local ready = left + (keyed and call('EXISTS', HEADS) * call('ZCARD', KEYED) or 0)
  local heads = call('ZMSCORE', HEADS, unpack(groups))
  for i, group in ipairs(groups) do
    local rule = rules[group]
    if rule and rule.limited then
      local has_more, meter = i == 1 and ready > 0 or heads[i], rule.meter
      if i > 1 and (rule.held or group == NONE) then has_more = positions(group, 0, 1)[1] end
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
        redis.pcall('HSET', METERS, group, struct.pack('>ddddddc12', unpack(meter)))
      end
    end
  end
  return ready
end
