-- The same claim again: what it got the first time, as far as it is still leased. Whoever was about to give it back
-- knows from the answer that somebody else has it now.
-- ARGV: 2 request, 3 answer, 4 how many of its jobs to pass over, 5 how many to look at.
-- Reply: now, how many it has, then for each of those looked at: number, ready at, record, body, progress, failure, lease.
local request, answer = ARGV[2], ARGV[3]
local all = call('HGET', C, request) or ''
local reply = { now, #all / 6 }
local first = tonumber(ARGV[4])
for i = first + 1, math.min(first + tonumber(ARGV[5]), #all / 6) do
  local n = string.sub(all, i * 6 - 5, i * 6)
  local lease = call('HGET', O, n)
  if lease and request_of(lease) == request then
    lease = string.sub(lease, 1, 49) .. answer .. struct.pack('>I8', 0) .. string.sub(lease, 66)
    call('HSET', O, n, lease)
    local expires, _, ready_at = struct.unpack('>I8I8I8', lease, 26)
    call('ZADD', L, expires, n)
    local failures = call('HMGET', H, n .. '1', n .. '0')
    reply[#reply + 1] = {
      n, ready_at, call('HGET', J, n) or '', call('HGET', B, n) or '', call('HGET', P, n) or '',
      failures[1] or failures[2] or '', lease,
    }
  end
end
return reply
