-- First step of a move: a dead letter is bound for another queue, and nobody else may have it. Repeat-safe by the death.
-- ARGV: 2 where it goes (a record that tells any server how to complete the move), then for each: number and death.
-- Reply: now, then a code for each: 0 bound, 1 it is not dead any more, or bound already.
local reply = { now }
for at = 3, #ARGV, 2 do
  local n = ARGV[at]
  local record = call('HGET', G, n)
  local code = 1
  if record and struct.unpack('>I8', record) == tonumber(ARGV[at + 1]) and call('HEXISTS', M, n) == 0 then
    call('HSET', M, n, ARGV[2])
    code = 0
  end
  reply[#reply + 1] = code
end
return reply
