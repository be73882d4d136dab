-- A claim was never answered: its jobs go back later, unless somebody asks for them again. Repeat-safe by the answer.
-- ARGV: 2 answer, 3 milliseconds from now, then for each: number, delivery and nonce of the lease.
-- Reply: now, when they go back.
local answer, at = ARGV[2], now + tonumber(ARGV[3])
for i = 4, #ARGV, 2 do
  local n, token = ARGV[i], ARGV[i + 1]
  local lease = call('HGET', O, n)
  if lease and string.sub(lease, 1, 12) == token and string.sub(lease, 50, 57) == answer then
    call('HSET', O, n, string.sub(lease, 1, 57) .. struct.pack('>I8', at) .. string.sub(lease, 66))
    local expires = struct.unpack('>I8', lease, 26)
    call('ZADD', L, math.min(at, expires), n)
  end
end
return { now, at }
