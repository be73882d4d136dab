-- Pauses a queue, in place of an earlier pause, or resumes it.
-- ARGV: 2 the queue's number, 3 milliseconds from now, or until then after an '@' (empty: no end; 'resume': it goes on), 4
--   reason.
-- Reply: now, jobs available (0: none was added), end of the pause (-1: none); or now and -1: the queue was forgotten.
if not is_queue(ARGV[2]) then
  return { now, -1 }
end
used()
if ARGV[3] == 'resume' then
  call('HDEL', S, 'pause', 'pause_reason')
  return { now, hint(math.huge), -1 }
end
local ends = -1
if string.sub(ARGV[3], 1, 1) == '@' then
  ends = tonumber(string.sub(ARGV[3], 2))
elseif ARGV[3] ~= '' then
  ends = now + tonumber(ARGV[3])
end
call('HSET', S, 'pause', ends, 'pause_reason', ARGV[4])
return { now, 0, ends }
