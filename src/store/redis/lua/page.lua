-- A stretch of a line, from behind a place in it, whether or not somebody is there. Reads only.
-- ARGV: 2 'r': of those ready, 'w': of those scheduled, 'z': of those done, 3 score and 4 member of the place (empty: from the front), 5 how
--   many.
-- Reply: now, how many are before the first of them, then for each: member, score.
local line = ({ r = R, w = W, z = Z })[ARGV[2]]
local score, member = ARGV[3], ARGV[4]

-- By their bytes: Lua's own comparison follows the locale.
local function is_up_to(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a <= #b
end

-- How many come up to and with the place; those of the same score are in the order of their bytes.
local function before()
  if score == '' then
    return 0
  end
  local from = call('ZCOUNT', line, '-inf', '(' .. score)
  local to = from + call('ZCOUNT', line, score, score)
  while from < to do
    local middle = math.floor((from + to) / 2)
    if is_up_to(call('ZRANGE', line, middle, middle)[1], member) then
      from = middle + 1
    else
      to = middle
    end
  end
  return from
end

local from = before()
local reply = { now, from }
local entries = call('ZRANGE', line, from, from + tonumber(ARGV[5]) - 1, 'WITHSCORES')
for i = 1, #entries, 2 do
  reply[#reply + 1] = { entries[i], entries[i + 1] }
end
return reply
