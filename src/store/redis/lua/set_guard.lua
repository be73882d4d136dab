-- A breaker changes, if it is as the server knows it.
-- ARGV: 2 the queue's number, 3 'work' or 'graves', 4 the breaker as it was, 5 as it is now, 6 '1': probes from before are
--   none any more.
-- Reply: now, 1 done, 0 it is another; -1: the queue was forgotten.
if not is_queue(ARGV[2]) then
  return { now, -1 }
end
if breaker(ARGV[3]) ~= ARGV[4] then
  return { now, 0 }
end
call('HSET', S, ARGV[3], ARGV[5])
if ARGV[6] == '1' then
  call('DEL', U)
  call('PUBLISH', S, 'breaker')
end
used()
return { now, 1 }
