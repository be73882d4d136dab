-- Compare and batch: every fence holds and every write is made, or nothing is. KEYS: those of lib.lua, then any.
-- ARGV: 1–3 see lib.lua (3 is for PROMOTE), 4 publish ('never'; 'first': if nothing was ready before; 'always': if anything
--   is), then columns: kind, position of the key, n (at most 4,000), n arguments. Fences stand before writes. Writes are made
--   in their order; the caller puts removals first, as a full Redis refuses a script whose first write is none (Enqueue).
-- Fences: BEGINS fields… prefixes… · TELL the same, the records come back · IS fields… records… · ABSENT fields…
--   AT members… scores… · ROOM add limit 'HLEN'|'ZCARD' then pairs 'HLEN'|'ZCARD', position of a key whose length is taken off
-- Writes: HSET HDEL ZADD ZREM as in Redis · PARTS last numbers…: the fields of a number and one byte up to last, or up
--   to what the state says of unusual ones
--   EXTEND score member…: never lowers, adds none, answers the scores · RAISE score member…: never lowers
--   ADD name delta…: removed at zero · PROMOTE limit
--   APPEND (key: a hash) position of an index, member, record…: the next number is the score and 8 bytes in front of the record
-- Reply: 0, ready jobs, promoted, told records, scores of EXTEND, numbers of APPEND. Or -1 and for each fence that failed its
--   place among the fences, from 0, and what was found.
local SIZES = { BEGINS = -2, TELL = -2, IS = -2, ABSENT = -1, AT = -2, ROOM = -1, HSET = 2, HDEL = 1, ZADD = 2, ZREM = 1,
  PARTS = 1, EXTEND = 2, RAISE = 2, ADD = 2, APPEND = 3, PROMOTE = 1 } -- negative: a fence
local failed, told, fence, writes, at = { -1 }, {}, 0, {}, 5
while at <= #ARGV do
  local kind, key, n = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
  local size = SIZES[kind]
  if not (size and key and n) or n < 1 or n > 4000 or at + 2 + n > #ARGV or n % size ~= 0 or size < 0 and writes[1] then
    return redis.error_reply('ERR malformed column at argument ' .. at)
  end
  if size > 0 then
    writes[#writes + 1] = at
    for j = at + 3, kind == 'APPEND' and at + 2 + n or 0, 3 do
      if not KEYS[tonumber(ARGV[j])] then return redis.error_reply('ERR no key for argument ' .. j) end
    end
    if kind == 'PROMOTE' and clock_is_off() then return { -3 } end
  elseif kind == 'ROOM' then
    local length = call(ARGV[at + 5], key)
    for j = at + 6, at + 2 + n, 2 do length = length - call(ARGV[j], KEYS[tonumber(ARGV[j + 1])]) end
    length = math.max(length, 0)
    if length + ARGV[at + 3] > tonumber(ARGV[at + 4]) then failed[#failed + 1], failed[#failed + 2] = fence, length end
    fence = fence + 1
  else
    local count, absent, score, whole = n / -size, kind == 'ABSENT', kind == 'AT', kind == 'IS'
    local found = call(score and 'ZMSCORE' or 'HMGET', key, unpack(ARGV, at + 3, at + 2 + count))
    for j = 1, count do
      local have, want, holds = found[j], ARGV[at + 2 + count + j], nil
      if absent then
        holds = not have
      elseif score then
        holds = have and tonumber(have) == tonumber(want)
      else
        holds = have and (whole and have or sub(have, 1, #want)) == want
      end
      if not holds then failed[#failed + 1], failed[#failed + 2] = fence + j - 1, have end
      if kind == 'TELL' then told[#told + 1] = have end
    end
    fence = fence + count
  end
  at = at + 3 + n
end
if failed[2] then return failed end

local before, used, promoted, scores, numbers = ARGV[4] == 'first' and call('ZCARD', READY), false, 0, {}, {}
for _, at in ipairs(writes) do
  local kind, key, n = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
  local from, to = at + 3, at + 2 + n
  used = used or kind ~= 'PROMOTE'
  if kind == 'PARTS' then
    local last = call('HGET', S, 'parts') or ARGV[from]
    for j = from + 1, to do
      local fields = {}
      for part = 0, tonumber(last) do fields[#fields + 1] = ARGV[j] .. string.char(part) end
      call('HDEL', key, unpack(fields))
    end
  elseif kind == 'EXTEND' then
    call('ZADD', key, 'XX', 'GT', unpack(ARGV, from, to))
    for j = from, to, 2 do scores[#scores + 1] = call('ZSCORE', key, ARGV[j + 1]) or ARGV[j] end
  elseif kind == 'RAISE' then
    call('ZADD', key, 'GT', unpack(ARGV, from, to))
  elseif kind == 'ADD' then
    for j = from, to, 2 do
      if call('HINCRBY', key, ARGV[j], ARGV[j + 1]) == 0 then call('HDEL', key, ARGV[j]) end
    end
  elseif kind == 'APPEND' then
    for j = from, to, 3 do
      local number = call('HINCRBY', S, 'sequence', '1')
      call('ZADD', KEYS[tonumber(ARGV[j])], number, ARGV[j + 1])
      call('HSET', key, ARGV[j + 1], struct.pack('>I8', number) .. ARGV[j + 2])
      numbers[#numbers + 1] = number
    end
  elseif kind == 'PROMOTE' then
    promoted = promoted + promote(ARGV[from])
  else
    call(kind, key, unpack(ARGV, from, to))
  end
end
-- A sweep that finds nothing due does not keep an empty queue.
if used or promoted > 0 then call('HSET', S, 'used', ARGV[2]) end
local ready = call('ZCARD', READY)
if ready > 0 and (ARGV[4] == 'always' or before == 0) then call('PUBLISH', S, ready) end
return { 0, ready, promoted, told, scores, numbers }
