-- A breaker changes, if it is as the server knows it.
-- ARGV: 2 the queue's number, 3 'work' or 'graves', 4 the breaker as it was, 5 as it is now, 6 '1': probes from before are
--   none any more, 7 the tally as it is now ('*': no other; empty: it starts over), 8 as it was, 9 bytes of failures that are in
--   it now.
-- Reply: now, 1 done, 0 it or the tally is another; -1: the queue was forgotten.
if not is_queue(ARGV[2]) then
  return { now, -1 }
end
if breaker(ARGV[3]) ~= ARGV[4] then
  return { now, 0 }
end
if ARGV[7] == '' then
  call('HDEL', S, 'tally', 'fails', 'wins')
elseif ARGV[7] ~= '*' then
  local tally, fails = counted()
  if tally ~= ARGV[8] then
    return { now, 0 }
  end
  set_tally(ARGV[7], fails, tonumber(ARGV[9]))
end
call('HSET', S, ARGV[3], ARGV[5])
if ARGV[6] == '1' then
  call('DEL', U)
  call('PUBLISH', S, 'breaker')
end
used()
return { now, 1 }
