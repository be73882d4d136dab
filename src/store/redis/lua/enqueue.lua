-- Enqueue: each job is added or refused by itself. Repeat-safe by the job's number and record.
-- ARGV: 2 the queue's number, 3 its depth limit (empty: none), then for each job 12: number, record, body (empty: in the
--   record), start ('n' now, 'a' after, 't' at), its milliseconds, level, own id, key, print, extras, the number and print
--   of a job that is known to have the id, and the id as it is shown.
-- Reply: now, jobs available (0: none was added), then for each job: code, state, time, id.
--   Codes: 0 added, 1 there already, 2 id taken, 3 key taken, 4 id and key differ, 5 full, 6 another job has the number.
--   now and -1: the queue was forgotten.
if not is_queue(ARGV[2]) then
  return { now, -1 }
end
local limit = tonumber(ARGV[3])

local function by_id(id, known)
  local entry = id ~= '' and call('HGET', I, id)
  if not entry and known ~= '' and call('HEXISTS', J, string.sub(known, 1, 6)) == 1 then
    entry = known
  end
  return entry and { number = string.sub(entry, 1, 6), print = string.sub(entry, 7, 38) }
end

local function by_key(key)
  local entry = key ~= '' and call('HGET', K, key)
  if not entry then
    return nil
  end
  local free_at = struct.unpack('>I8', entry, 39)
  if free_at > 0 and free_at <= now then
    return nil
  end
  return {
    number = string.sub(entry, 1, 6),
    print = string.sub(entry, 7, 38),
    finished = free_at > 0,
    id = string.sub(entry, 47),
  }
end

local function found(earlier, id)
  if earlier.finished then
    return { 1, 4, 0, earlier.id }
  end
  local state, at = where(earlier.number)
  return { 1, state, at, earlier.id or id }
end

-- Whoever has the id or the key already, as a reply.
local function earlier(number, id, key, print, known)
  local named, keyed = by_id(id, known), by_key(key)
  if (named or keyed or {}).number == number then
    return nil
  end
  if named and named.print ~= print then
    return { 2 }
  elseif keyed and keyed.print ~= print then
    return { 3 }
  elseif named and keyed and named.number ~= keyed.number then
    return { 4 }
  elseif keyed and not named and id ~= '' and id ~= keyed.id then
    return { 4 }
  elseif keyed then
    return found(keyed, id)
  elseif named then
    return found(named, id)
  end
end

local function due(start, millis)
  if start == 'n' then
    return now
  elseif start == 'a' then
    return now + millis
  end
  return math.max(now, millis)
end

-- Jobs that have nothing but their record are added together: nobody can mean one of them before that.
local records, bodies, line, later = {}, {}, {}, {}

local function put(list, ...)
  for _, value in ipairs({ ... }) do
    list[#list + 1] = value
  end
end

local function add_plain(number, record, body, level, time)
  put(records, number, record)
  if body ~= '' then
    put(bodies, number, body)
  end
  if time <= now then
    put(line, level * LEVEL + time, number)
    return { 0, 2, time }, true
  end
  put(later, time, number .. string.char(level))
  return { 0, 1, time }, true
end

local function flush(command, key, list)
  if #list > 0 then
    call(command, key, unpack(list))
  end
end

local function add(at, there)
  local number, record, body, start, millis, level, id, key, print, extra, known =
    unpack(ARGV, at, at + 10)
  local other = (id ~= '' or key ~= '') and earlier(number, id, key, print, known)
  if other then
    return other
  end
  if there == record then
    local state, time = where(number)
    return { 0, state, time }
  elseif there then
    return { 6 }
  end
  if limit and call('ZCARD', R) + call('ZCARD', W) + call('ZCARD', L) >= limit then
    return { 5 }
  end
  local time = due(start, tonumber(millis))
  if not limit and extra == '' then
    return add_plain(number, record, body, tonumber(level), time)
  end
  call('HSET', J, number, record)
  if body ~= '' then
    call('HSET', B, number, body)
  end
  local tie = number
  if extra ~= '' then
    call('HSET', X, number, extra)
    local deadline = struct.unpack('>I8', extra, 9)
    if deadline > 0 then
      call('ZADD', E, deadline, number)
    end
    if id ~= '' then
      call('HSET', I, id, number .. print)
      tie = '\255' .. id .. '\0' .. number
    end
    if key ~= '' then
      call('ZREM', F, key)
      call('HSET', K, key, number .. print .. struct.pack('>I8', 0) .. ARGV[at + 11])
    end
  end
  return { 0, wait(tie, tonumber(level), time), time }, true
end

local numbers = {}
for at = 4, #ARGV, 12 do
  numbers[#numbers + 1] = ARGV[at]
end
local there = call('HMGET', J, unpack(numbers))
local reply, added, ready = { now, 0 }, 0, 0
for i = 1, #numbers do
  local item, new = add(12 * i - 8, there[i])
  if new then
    added = added + 1
    ready = ready + (item[2] == 2 and 1 or 0)
  end
  reply[#reply + 1] = item
end
flush('HSET', J, records)
flush('HSET', B, bodies)
flush('ZADD', R, line)
flush('ZADD', W, later)
if added > 0 then
  call('HINCRBY', S, 'enqueued', added)
  used()
end
if ready > 0 then
  reply[2] = hint(ready)
end
return reply
