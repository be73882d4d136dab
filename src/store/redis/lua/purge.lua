-- Dead letters go for good, with all that hung on them. Repeat-safe by the death.
-- ARGV: 2 the counter that counts them, then for each: number and death.
-- Reply: now, then a code for each: 0 gone, 1 it is not dead any more.
local counter = ARGV[2]
local reply, gone = { now }, 0
for at = 3, #ARGV, 2 do
  local n = ARGV[at]
  local code = 1
  if call('HEXISTS', M, n) == 0 and take_dead(n, tonumber(ARGV[at + 1])) then
    local x = extras(n)
    drop_key(n, x)
    remove(n, x)
    gone = gone + 1
    code = 0
  end
  reply[#reply + 1] = code
end
if gone > 0 then
  call('HINCRBY', S, counter, gone)
  used()
end
return reply
