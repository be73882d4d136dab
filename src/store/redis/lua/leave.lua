-- Third step of a move: the job has arrived and is no longer here; or it could not, and is a dead letter as before.
-- Repeat-safe by the record of the first step: whoever comes late leaves another move of the same job alone.
-- ARGV: 2 '1' it has arrived, '0' it could not, 3 the name of the other queue, 4 the record, then numbers.
-- Reply: now, then for each 1 if there was something to do.
local arrived = ARGV[2] == '1'
local reply, gone = { now }, 0
for at = 5, #ARGV do
  local n = ARGV[at]
  local code = call('HGET', M, n) == ARGV[4] and call('HDEL', M, n) or 0
  if code == 1 and arrived then
    local record = call('HGET', G, n)
    if record and take_dead(n, struct.unpack('>I8', record)) then
      local x = extras(n)
      drop_key(n, x)
      remove(n, x)
      -- Whoever had it here learns that it is not done.
      call('HSET', N, n, ARGV[3])
      call('ZADD', Y, now, n)
      gone = gone + 1
    end
  end
  reply[#reply + 1] = code
end
if gone > 0 then
  call('HINCRBY', S, 'requeued', gone)
  call('HINCRBY', S, 'moved_out', gone)
  used()
end
return reply
