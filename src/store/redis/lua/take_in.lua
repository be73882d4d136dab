-- Jobs that come from another store, each added or refused by itself. Repeat-safe by their ids.
-- ARGV: 2 the queue's number, 3 milliseconds for which a finished job's key is held, 4 so many of those at most, 5 '1': dead
--   jobs hold their keys, then for each 20: number, record, body (empty: in the record), extras, progress (empty: none),
--   print, tie, level, the number and the 16 bytes that its id carries (empty: none), its id as it is shown, kind ('w' waits,
--   'd' dead, 'c' completed), its time, '1' to watch its deadline, result (empty: none), of a death: from the reason to the
--   depths, the type of error, the states of both breakers; how many fields and values its history has, and these: their
--   lengths of 4 bytes each, then their bytes.
-- Reply: now, jobs available (0: none was added), then for each: 0 added, 1 its id is taken, 2 its key is taken, 3 another
--   job has the number. now and -1: the queue was forgotten.
if not is_queue(ARGV[2]) then
  return { now, -1 }
end
local retention, keys_max, dead_hold = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1'
local TYPES_MAX = 1000

-- Fields of its history and their values, cut out of one string.
local function history(count, packed)
  local parts, from = {}, 4 * count + 1
  for i = 1, count do
    local length = struct.unpack('>I4', packed, 4 * i - 3)
    parts[i] = string.sub(packed, from, from + length - 1)
    from = from + length
  end
  return parts
end

-- The last in the order of death.
local function lay_to_rest(n, head, error_type, states)
  local death = call('HINCRBY', S, 'deaths', 1)
  local counted = error_type
  if call('HEXISTS', T, counted) == 0 and call('HLEN', T) >= TYPES_MAX then
    counted = '(other)'
  end
  call('HINCRBY', T, counted, 1)
  call('ZADD', D, death, n)
  if string.byte(head, 10) == 1 then
    call('ZADD', V, death, n)
  end
  local type_of_error = struct.pack('>I2', #counted) .. counted
  call('HSET', G, n, struct.pack('>I8', death) .. head .. type_of_error .. states)
end

local function take_in(at)
  local n, record, body, extra, progress, print, tie, level, carried, uuid = unpack(ARGV, at, at + 9)
  local shown, kind, time, watch, result, head, error_type, states, count, packed = unpack(ARGV, at + 10, at + 19)
  if call('HEXISTS', J, n) == 1 then
    return 3
  elseif find(shown, carried, uuid) then
    return 1
  end
  local length = extra ~= '' and struct.unpack('>I2', extra, 17) or 0
  local id, key = string.sub(extra, 19, 18 + length), string.sub(extra, 19 + length)
  local entry = key ~= '' and call('HGET', K, key)
  local key_is_free = not entry or struct.unpack('>I8', entry, 39) > 0
  if kind == 'w' and not key_is_free then
    return 2
  end
  call('HSET', J, n, record)
  if body ~= '' then
    call('HSET', B, n, body)
  end
  if extra ~= '' then
    call('HSET', X, n, extra)
  end
  if id ~= '' then
    call('HSET', I, id, n .. print)
  end
  if progress ~= '' then
    call('HSET', P, n, progress)
  end
  count = tonumber(count)
  if count > 0 then
    call('HSET', H, unpack(history(count, packed)))
  end
  if key ~= '' and key_is_free and (kind ~= 'd' or dead_hold) then
    call('ZREM', F, key)
    call('HSET', K, key, n .. print .. struct.pack('>I8', 0) .. shown)
    if kind == 'c' then
      finish_key(n, extras(n), retention, keys_max)
    end
  end
  if kind == 'w' then
    if watch == '1' then
      call('ZADD', E, struct.unpack('>I8', extra, 9), n)
    end
    return 0, wait(tie, tonumber(level), tonumber(time))
  elseif kind == 'd' then
    lay_to_rest(n, head, error_type, states)
    return 0, 5
  end
  call('ZADD', Z, time, n)
  if result ~= '' then
    call('HSET', Q, n, result)
  end
  return 0, 4
end

local reply, added, ready, completed = { now, 0 }, 0, 0, 0
for at = 6, #ARGV, 20 do
  local code, state = take_in(at)
  reply[#reply + 1] = code
  added = added + (code == 0 and 1 or 0)
  ready = ready + (state == 2 and 1 or 0)
  completed = completed + (state == 4 and 1 or 0)
end
if added > 0 then
  call('HINCRBY', S, 'moved_in', added)
  call('HINCRBY', S, 'taken_in', added)
  if completed > 0 then
    call('HINCRBY', S, 'completed', completed)
  end
  used()
end
if ready > 0 then
  reply[2] = hint(ready)
end
return reply
