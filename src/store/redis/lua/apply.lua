-- Compare and batch: every fence holds and every write is made, or nothing is. KEYS: those of lib.lua, then any.
-- ARGV: 1–3 see lib.lua (3 is '' where nothing is promoted), 4 publish ('never'; 'first': if nothing was ready before; 'always':
--   if anything is), 5 numbers: of the state the fields that are fenced 2 bytes, those that are added to 2, those that only rise 2,
--   then columns that are fences 2, then of each column the position of its key 1 and how many arguments it has 2; then
--   the fields of the state; for each of them what it must be ('': absent), how much is added, or the least that it is to be; then
--   the columns: a kind, and its arguments (at most 4,000). Fences stand before writes. Writes are made in their order; the
--   caller puts removals first, as a full Redis refuses a script whose first write is none (Enqueue).
-- Fences: BEGINS fields… prefixes… · TELL the same, the records come back · IS fields… records… · ABSENT fields…
--   AT members… scores… · ROOM add limit 'HLEN'|'ZCARD' then pairs 'HLEN'|'ZCARD', position of a key whose length is taken off
-- Writes: HSET HDEL ZADD ZREM as in Redis · ATTEMPTS, EVENTS, FAILURES last numbers…: the fields of each part of a number up to last,
--   or up to what the state says of unusual ones · EXTEND score member…: never lowers, adds none, answers the scores
--   ADD name delta…: removed at zero · PROMOTE limit
--   APPEND (key: a hash) position of an index, member, record…: the next number is the score and 8 bytes in front of the record
-- Reply: 0, ready jobs, promoted, then told records, and scores of EXTEND and numbers of APPEND in their order. Or -1 and for each
--   fence that failed its place among the fences, from 0, and what was found.
local byte, columns, promoted = string.byte, ARGV[5], 0
-- What stands behind the part in a field.
local TAILS = { ATTEMPTS = '', EVENTS = 'e', FAILURES = 'f' }
local function number(at)
  local high, low = byte(columns, at, at + 1)
  return high * 256 + low
end
local fenced, added = number(1), number(3)
local fields = fenced + added + number(5)
local state = call('HMGET', S, 'generation', unpack(ARGV, 6, 5 + fields))
if state[1] ~= ARGV[1] then return { -2 } end
if clock_is_off() then return { -3 } end

local failed, reply, fence, at = { -1 }, { 0, 0, 0 }, fenced, 6 + 2 * fields
for i = 1, fenced do
  if (state[i + 1] or '') ~= ARGV[5 + fields + i] then failed[#failed + 1], failed[#failed + 2] = i - 1, state[i + 1] end
end
local writes = 9 + 3 * number(7)
for column = 9, writes - 3, 3 do
  local kind, key, n = ARGV[at], KEYS[byte(columns, column)], number(column + 1)
  if kind == 'ROOM' then
    local length = call(ARGV[at + 3], key)
    for j = at + 4, at + n, 2 do length = length - call(ARGV[j], KEYS[tonumber(ARGV[j + 1])]) end
    length = math.max(length, 0)
    if length + ARGV[at + 1] > tonumber(ARGV[at + 2]) then failed[#failed + 1], failed[#failed + 2] = fence, length end
    fence = fence + 1
  else
    local absent, score, whole = kind == 'ABSENT', kind == 'AT', kind == 'IS'
    local count = absent and n or n / 2
    local found = call(score and 'ZMSCORE' or 'HMGET', key, unpack(ARGV, at + 1, at + count))
    for j = 1, count do
      local have, want, holds = found[j], ARGV[at + count + j], nil
      if absent then
        holds = not have
      elseif score then
        holds = have and tonumber(have) == tonumber(want)
      else
        holds = have and (whole and have or sub(have, 1, #want)) == want
      end
      if not holds then failed[#failed + 1], failed[#failed + 2] = fence + j - 1, have end
      if kind == 'TELL' then reply[#reply + 1] = have end
    end
    fence = fence + count
  end
  at = at + n + 1
end
if failed[2] then return failed end

local before, grown, used = call('ZCARD', READY), 0, added > 0
local puts = {}
for column = writes, #columns, 3 do
  local kind, key, from, to = ARGV[at], KEYS[byte(columns, column)], at + 1, at + number(column + 1)
  used = used or kind ~= 'PROMOTE'
  if kind == 'HSET' and key == S and #puts < 1000 then
    for j = from, to do puts[#puts + 1] = ARGV[j] end
  elseif TAILS[kind] then
    local last, tail = call('HGET', S, 'parts') or ARGV[from], TAILS[kind]
    for j = from + 1, to do
      local parts = {}
      for part = 0, tonumber(last) do parts[part + 1] = ARGV[j] .. string.char(part) .. tail end
      call('HDEL', key, unpack(parts))
    end
  elseif kind == 'EXTEND' then
    call('ZADD', key, 'XX', 'GT', unpack(ARGV, from, to))
    for j = from, to, 2 do reply[#reply + 1] = call('ZSCORE', key, ARGV[j + 1]) or ARGV[j] end
  elseif kind == 'ADD' then
    for j = from, to, 2 do
      if call('HINCRBY', key, ARGV[j], ARGV[j + 1]) == 0 then call('HDEL', key, ARGV[j]) end
    end
  elseif kind == 'APPEND' then
    for j = from, to, 3 do
      local death = call('HINCRBY', S, 'sequence', '1')
      call('ZADD', KEYS[tonumber(ARGV[j])], death, ARGV[j + 1])
      call('HSET', key, ARGV[j + 1], struct.pack('>I8', death) .. ARGV[j + 2])
      reply[#reply + 1] = death
    end
  elseif kind == 'PROMOTE' then
    promoted = promoted + promote(ARGV[from])
  else
    local changed = call(kind, key, unpack(ARGV, from, to))
    if key == READY then grown = grown + (kind == 'ZADD' and changed or -changed) end
  end
  at = to + 1
end
for i = fenced + 1, fields do
  local field, have, by = ARGV[5 + i], tonumber(state[i + 1]) or 0, tonumber(ARGV[5 + fields + i])
  local now = i <= fenced + added and have + by or math.max(have, by)
  if now == 0 and i <= fenced + added then
    call('HDEL', S, field)
  else
    puts[#puts + 1], puts[#puts + 2] = field, string.format('%.0f', now)
  end
end
-- A sweep that finds nothing due does not keep an empty queue, nor does a field that rises alone.
if used or promoted > 0 then puts[#puts + 1], puts[#puts + 2] = 'used', ARGV[2] end
if puts[1] then call('HSET', S, unpack(puts)) end
local ready = before + grown + promoted
if ready > 0 and (ARGV[4] == 'always' or ARGV[4] == 'first' and before == 0) then call('PUBLISH', S, ready) end
reply[2], reply[3] = ready, promoted
return reply
