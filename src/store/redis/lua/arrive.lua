-- Second step of a move: the job is READY here, if its id and key are free. Repeat-safe by the mark, which stays long after
-- the queue that it comes from has let go of it: somebody slow may come when the job is done and gone.
-- ARGV: 2 the queue's number, 3 '1': only tells what would happen, 4 mark, 5 number, 6 record, 7 body (empty: in the
--   record), 8 extras, 9 progress, 10 print, 11 tie, 12 level, 13 the number and 14 the 16 bytes that its id carries (empty:
--   none), 15 its id as it is shown, 16 '1' to watch its deadline, then fields of its history and their values.
-- Reply: now, code (0 it is here, 1 its id is taken, 2 its key is taken), jobs available; or now and -1: the queue was
--   forgotten.
if not is_queue(ARGV[2]) then
  return { now, -1 }
end
local dry, mark, n, record, body, extra, progress, print, tie, level = unpack(ARGV, 3, 12)
if call('ZSCORE', A, mark) then
  return { now, 0, 0 }
end
local length = extra ~= '' and struct.unpack('>I2', extra, 17) or 0
local id, key = string.sub(extra, 19, 18 + length), string.sub(extra, 19 + length)
if call('HEXISTS', J, n) == 1 or find(ARGV[15], ARGV[13], ARGV[14]) then
  return { now, 1, 0 }
end
local entry = key ~= '' and call('HGET', K, key)
if entry and struct.unpack('>I8', entry, 39) == 0 then
  return { now, 2, 0 }
end
if dry == '1' then
  return { now, 0, 0 }
end
call('ZADD', A, now, mark)
call('HDEL', N, n)
call('ZREM', Y, n)
call('HSET', J, n, record)
if body ~= '' then
  call('HSET', B, n, body)
end
if extra ~= '' then
  call('HSET', X, n, extra)
  if id ~= '' then
    call('HSET', I, id, n .. print)
  end
  if key ~= '' then
    call('ZREM', F, key)
    call('HSET', K, key, n .. print .. struct.pack('>I8', 0) .. ARGV[15])
  end
  if ARGV[16] == '1' then
    call('ZADD', E, struct.unpack('>I8', extra, 9), n)
  end
end
call('HSET', P, n, progress)
if #ARGV > 16 then
  call('HSET', H, unpack(ARGV, 17))
end
wait(tie, tonumber(level), now)
call('HINCRBY', S, 'moved_in', 1)
used()
return { now, 0, hint(1) }
