-- Stands in front of apply and take. All keys are declared: none is built in a script.
-- KEYS: 1 state (hash, see keys.rs: generation, versions, breaker, counters and what else a queue has one of), 2 ready,
--   3 scheduled, 4 retrying, 5 keyed, 6 heads; then those of the script.
-- ARGV: 1 generation of the queue, 2 store time in ms, 3 what TIME should say in ms ('': it is not compared).
-- A position: group 2 bytes, rank 1, ready_at 6, number 6, tag 1 (bit 0: it has a History). scheduled, retrying: position by
--   ready_at. keyed: position, score 0. ready: the same without its group, which is 0. heads: group by rank and ready_at of its
--   first position in keyed, unless it is held. Strings are never compared by `<`: it is strcoll.
-- A version: state 1 byte (0 free, 1 needs a rule, 2 held), epoch 4, random 8. Absent: zeros.
-- Replies of both: { -2 } another generation; { -3 } TIME is off by more than 250 ms. Nothing was done.
local S, READY, SCHEDULED, RETRYING, KEYED, HEADS = unpack(KEYS, 1, 6)
local call, sub, byte, NONE = redis.call, string.sub, string.byte, '\0\0'

-- A command that waited in a stopped process would make leases that are born expired.
local function clock_is_off()
  if ARGV[3] == '' then return false end
  local time = call('TIME')
  return math.abs(time[1] * 1000 + time[2] / 1000 - ARGV[3]) > 250
end

-- Ready positions of a group, behind the first `offset`.
local function positions(group, offset, limit)
  if group == NONE then return call('ZRANGE', READY, offset, offset + limit - 1) end
  return call('ZRANGE', KEYED, '[' .. group, '(' .. group .. '\255\255', 'BYLEX', 'LIMIT', offset, limit)
end

-- Groups whose positions or versions changed, and how many positions they got. Heads follow from them; nothing else writes heads.
local touched = {}
local function touch(group, count) touched[group] = (touched[group] or 0) + count end
local function derive_heads()
  for group in pairs(touched) do
    local first = byte(call('HGET', S, group) or NONE) < 2 and positions(group, 0, 1)[1]
    if first then
      local rank, ready_at = struct.unpack('>I1I6', first, 3)
      call('ZADD', HEADS, rank * 2 ^ 45 + ready_at, group)
    else
      call('ZREM', HEADS, group)
    end
  end
end

-- Whether a group that is not held has something and had nothing before.
local function has_new_group()
  for group, count in pairs(touched) do
    if count > 0 and call('ZSCORE', HEADS, group) and not positions(group, count, 1)[1] then return true end
  end
end

-- Up to `limit` (a string, at most 1,000) due positions of each index become ready. Removals come first: a full Redis
-- refuses a script only at its first write. Arguments are strings where they can be: Redis formats a number slowly.
-- Says how many there were, and how many of them have no group.
local function promote(limit)
  local ready, keyed, removed = {}, {}, 0
  for _, index in ipairs({ RETRYING, SCHEDULED }) do
    local due = call('ZRANGE', index, '-inf', ARGV[2], 'BYSCORE', 'LIMIT', '0', limit)
    if due[1] then call('ZREM', index, unpack(due)) end
    for _, position in ipairs(due) do
      local group, into = sub(position, 1, 2), ready
      if group ~= NONE then into = keyed; touch(group, 1) end
      into[#into + 1], into[#into + 2] = '0', group == NONE and sub(position, 3) or position
    end
    removed = removed + #due
  end
  if ready[1] then call('ZADD', READY, unpack(ready)) end
  if keyed[1] then call('ZADD', KEYED, unpack(keyed)) end
  return removed, #ready / 2
end
