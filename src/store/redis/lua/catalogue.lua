-- The catalogue: one slot for what concerns all queues.
-- KEYS: 1 catalogue (hash: queue to generation, and '~store' the store's generation, '~format', '~clock', '~number'), 2 names
--   (zset, score 0), 3 servers (hash: id to when its note ends 8 bytes, note).
-- ARGV: 1 verb, 2 the store's generation as this server knows it ('': open makes one), then those of the verb:
--   open new generation, format · look · register queue, most queues, new generation · adopt queue, from, to
--   forget queue, generation · numbers count · clock from, to · heartbeat id, store time in ms, ms that the note counts (0: it
--   goes), note
-- Reply: TIME's seconds and microseconds, generation of the store, its format, its clock; then, unless the store is another:
--   of register the queue's generation ('': there are too many), of numbers the last one, of heartbeat all notes.
local call, verb, C = redis.call, ARGV[1], KEYS[1]
local function reply(...)
  local time, known = call('TIME'), call('HMGET', C, '~store', '~format', '~clock')
  return { tonumber(time[1]), tonumber(time[2]), known[1] or '', known[2] or '', known[3] or '', ... }
end
if verb == 'open' and ARGV[2] == '' and call('HEXISTS', C, '~store') == 0 then
  call('HSET', C, '~store', ARGV[3], '~format', ARGV[4])
elseif verb ~= 'open' and call('HGET', C, '~store') ~= ARGV[2] then
  return reply()
end
if verb == 'register' then
  local generation = call('HGET', C, ARGV[3])
  if not generation and call('ZCARD', KEYS[2]) < tonumber(ARGV[4]) then
    generation = ARGV[5]
    call('HSET', C, ARGV[3], generation)
    call('ZADD', KEYS[2], 0, ARGV[3])
  end
  return reply(generation or '')
elseif verb == 'adopt' then
  if call('HGET', C, ARGV[3]) == ARGV[4] then call('HSET', C, ARGV[3], ARGV[5]) end
elseif verb == 'forget' then
  if call('HGET', C, ARGV[3]) == ARGV[4] then
    call('HDEL', C, ARGV[3])
    call('ZREM', KEYS[2], ARGV[3])
  end
elseif verb == 'numbers' then
  return reply(call('HINCRBY', C, '~number', ARGV[3]))
elseif verb == 'clock' then
  if (call('HGET', C, '~clock') or '') == ARGV[3] then call('HSET', C, '~clock', ARGV[4]) end
elseif verb == 'heartbeat' then
  local now, kept, notes = tonumber(ARGV[4]), tonumber(ARGV[5]), {}
  if kept > 0 then
    call('HSET', KEYS[3], ARGV[3], struct.pack('>I8', now + kept) .. ARGV[6])
    call('PEXPIRE', KEYS[3], kept)
  else
    call('HDEL', KEYS[3], ARGV[3])
  end
  local servers = call('HGETALL', KEYS[3])
  for at = 1, #servers, 2 do
    if struct.unpack('>I8', servers[at + 1]) > now then
      notes[#notes + 1] = string.sub(servers[at + 1], 9)
    else
      call('HDEL', KEYS[3], servers[at])
    end
  end
  return reply(notes)
end
return reply()
