-- Records and ranges at one moment. Run by EVALSHA_RO, which refuses writes. KEYS: 1 state, then any.
-- ARGV: 1 generation, 2 '1': TIME is asked for, 3 numbers as in apply.lua, of which the first is how many fields of the state are
--   read; then these fields, then the columns: a kind, and its arguments (at most 4,000). A kind is a Redis command, or
--   RANGE reverse ('1' or '0') limit up_to ('': no bound) [score member]: entries by score and then by bytes, beyond that one
--   SCAN: the fields of a hash, or its length where there are more than 4,000
-- Reply: TIME in microseconds (0: not asked for), the fields of the state, then for each column what was found; HMGET and ZMSCORE have
--   a value for each argument, not a list: each list in a reply costs Redis time of its own. { -2 }: another generation.
local call, byte = redis.call, string.byte
local function number(at)
  local high, low = byte(ARGV[3], at, at + 1)
  return high * 256 + low
end
local at = 4 + number(1)
local reply = call('HMGET', KEYS[1], 'generation', unpack(ARGV, 4, at - 1))
if reply[1] ~= ARGV[1] then return { -2 } end

-- By bytes: `<` is strcoll.
local function precedes(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- All by rank: the entry to go on from is looked for by halving its run of equal scores, so it need not be there. The reply is
-- in rising order.
local function range(key, reverse, limit, up_to, score, member)
  local back, last = reverse == '1', up_to == '' and call('ZCARD', key) or call('ZCOUNT', key, '-inf', up_to)
  local at = back and last or 0
  if member then
    local low, high = call('ZCOUNT', key, '-inf', '(' .. score), call('ZCOUNT', key, '-inf', score)
    while low < high do
      local middle = math.floor((low + high) / 2)
      local other = call('ZRANGE', key, middle, middle)[1]
      if precedes(other, member) or other == member and not back then low = middle + 1 else high = middle end
    end
    at = back and math.min(low, last) or low
  end
  local from, to = at, math.min(at + limit, last) - 1
  if back then from, to = math.max(at - limit, 0), at - 1 end
  return from <= to and call('ZRANGE', key, from, to, 'WITHSCORES') or {}
end

for column = 11, #ARGV[3], 3 do
  local kind, key, to = ARGV[at], KEYS[byte(ARGV[3], column)], at + number(column + 1)
  if kind == 'HMGET' or kind == 'ZMSCORE' then
    local found, filled = call(kind, key, unpack(ARGV, at + 1, to)), #reply
    for i = 1, to - at do reply[filled + i] = found[i] end
  elseif kind == 'RANGE' then
    reply[#reply + 1] = range(key, unpack(ARGV, at + 1, to))
  elseif kind == 'SCAN' then
    local length = call('HLEN', key)
    reply[#reply + 1] = length <= 4000 and call('HKEYS', key) or length
  else
    reply[#reply + 1] = call(kind, key, unpack(ARGV, at + 1, to))
  end
  at = to + 1
end
reply[1] = 0
if ARGV[2] == '1' then
  local time = call('TIME')
  reply[1] = time[1] * 1000000 + time[2]
end
return reply
