-- Extend: leases go on, and are never shortened. Repeat-safe by the lease.
-- ARGV: 2 milliseconds that a delivery may take in all, then for each: number, delivery and nonce of the lease,
--   milliseconds from now (empty: the lease's own), checkpoint (empty: the earlier one stays).
-- Reply: now, then for each: '1' and when it ends and whether it was cancelled, or '0' if the lease is lost.
local run_time = tonumber(ARGV[2])
local reply = { now }
for at = 3, #ARGV, 4 do
  local n, token, asked, checkpoint = unpack(ARGV, at, at + 3)
  local lease = call('HGET', O, n)
  if lease and string.sub(lease, 1, 12) == token then
    local started, expires, duration = struct.unpack('>I8I8I8', lease, 18)
    local wanted = now + (tonumber(asked) or duration)
    expires = math.max(expires, math.min(wanted, started + run_time))
    local _, rest = request_of(lease)
    if checkpoint == '' then
      checkpoint = string.sub(lease, rest)
    end
    local out = string.sub(lease, 1, 25) .. struct.pack('>I8', expires) .. string.sub(lease, 34, 57)
      .. struct.pack('>I8', 0) .. string.sub(lease, 66, rest - 1) .. checkpoint
    call('HSET', O, n, out)
    call('ZADD', L, expires, n)
    reply[#reply + 1] = { 1, expires, has(lease, CANCELLED) and 1 or 0 }
  else
    reply[#reply + 1] = { 0 }
  end
end
return reply
