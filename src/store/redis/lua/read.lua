-- Records and ranges at one moment. Run by EVALSHA_RO, which refuses writes. KEYS: 1 state, then any.
-- ARGV: 1 generation, then columns: a kind, the position of its key, n (at most 4,000), n arguments. A kind is a Redis command, or
--   RANGE reverse ('1' or '0') limit up_to ('': no bound) [score member]: entries by score and then by bytes, beyond that one
--   SCAN: the fields of a hash, or its length where there are more than 4,000
-- Reply: TIME's seconds and microseconds, then for each column what was found. { -2 }: another generation.
local call = redis.call
if call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return { -2 } end

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

local time, at = call('TIME'), 2
local reply = { tonumber(time[1]), tonumber(time[2]) }
while at <= #ARGV do
  local kind, key, n = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
  if not (key and n) or n > 4000 or at + 2 + n > #ARGV then
    return redis.error_reply('ERR malformed column at argument ' .. at)
  end
  local found
  if kind == 'RANGE' then
    found = range(key, unpack(ARGV, at + 3, at + 2 + n))
  elseif kind == 'SCAN' then
    local length = call('HLEN', key)
    found = length <= 4000 and call('HKEYS', key) or length
  else
    found = call(kind, key, unpack(ARGV, at + 3, at + 2 + n))
  end
  reply[#reply + 1] = found
  at = at + 3 + n
end
return reply
