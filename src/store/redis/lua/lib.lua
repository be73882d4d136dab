-- Stands in front of apply and take. All keys are declared: none is built in a script.
-- KEYS: 1 state (hash, see keys.rs: generation, versions, breaker, counters and what else a queue has one of), 2 ready,
--   3 scheduled, 4 retrying; then those of the script.
-- ARGV: 1 generation of the queue, 2 store time in ms, 3 what TIME should say in ms ('': it is not compared).
-- A position: group 2 bytes, rank 1, ready_at 6, number 6, tag 1 (bit 0: it has a History). scheduled, retrying: position by
--   ready_at. ready: position without its group, which is 0, with score 0. Strings are never compared by `<`: it is strcoll.
-- A version: state 1 byte (0 free, 1 needs a rule, 2 held), epoch 4, random 8. Absent: zeros.
-- Replies of both: { -2 } another generation; { -3 } TIME is off by more than 250 ms. Nothing was done.
-- { -4 } there are groups: it needs groups.lua, which defines the last line of these.
local S, READY, SCHEDULED, RETRYING = unpack(KEYS, 1, 4)
local call, sub, byte = redis.call, string.sub, string.byte
local NONE, NEW = '\0\0', '\0\0\0\0\0\0\0\0\0\0\0\0\0'
local grouped, touched, touch, derive_heads, has_new_group, took, write_keyed, end_rules

-- A command that waited in a stopped process would make leases that are born expired.
local function clock_is_off()
  if ARGV[3] == '' then return false end
  local time = call('TIME')
  return math.abs(time[1] * 1000 + time[2] / 1000 - ARGV[3]) > 250
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
      local into, member = ready, sub(position, 3)
      if grouped and sub(position, 1, 2) ~= NONE then
        into, member = keyed, position
        touch(sub(position, 1, 2), 1)
      end
      into[#into + 1], into[#into + 2] = '0', member
    end
    removed = removed + #due
  end
  if ready[1] then call('ZADD', READY, unpack(ready)) end
  if keyed[1] then call('ZADD', KEYS[5], unpack(keyed)) end
  return removed, #ready / 2
end
