-- Where a job waits. Ready: the score is the level (127 - priority) and the time, the member what breaks a tie.
-- Scheduled: the score is the time, and the member has the level behind it.
local LEVEL = 17592186044416

-- What a job has besides its record: its own id, its key, its deadline (0: none), when it was enqueued.
local function extras(n)
  local x = call('HGET', X, n)
  if not x then
    return nil
  end
  local enqueued_at, deadline, length = struct.unpack('>I8I8I2', x)
  local id, key = string.sub(x, 19, 18 + length), string.sub(x, 19 + length)
  return { enqueued_at = enqueued_at, deadline = deadline, id = id, key = key }
end

local function tie_of(n)
  local x = extras(n)
  return x and x.id ~= '' and '\255' .. x.id .. '\0' .. n or n
end

-- READY (2) if its time has come, otherwise SCHEDULED (1).
local function wait(tie, level, at)
  if at <= now then
    call('ZADD', R, level * LEVEL + at, tie)
    return 2
  end
  call('ZADD', W, at, tie .. string.char(level))
  return 1
end

-- Its state and its time: scheduled 1, ready 2, leased 3, completed or gone 4, dead 5.
local function where(n)
  if call('HEXISTS', O, n) == 1 then
    return 3, 0
  end
  if call('HEXISTS', G, n) == 1 then
    return 5, 0
  end
  local record = call('HGET', J, n)
  if record then
    local tie = tie_of(n)
    local score = call('ZSCORE', R, tie)
    if score then
      return 2, score % LEVEL, tie
    end
    local member = tie .. string.sub(record, 5, 5)
    score = call('ZSCORE', W, member)
    if score then
      return 1, tonumber(score), member
    end
    score = call('ZSCORE', Z, n)
    if score then
      return 4, tonumber(score)
    end
  end
  return 4, 0
end

-- The job of this id: the caller's own, or one that carries its number and is kept under it.
local function find(id, number, uuid)
  local entry = call('HGET', I, id)
  if entry then
    return string.sub(entry, 1, 6)
  end
  if number ~= '' then
    local record = call('HGET', J, number)
    if record and string.sub(record, 12, 28) == '\0' .. uuid then
      return number
    end
  end
end

-- SCHEDULED to READY for what is due; late or not, the order is that of the due times.
local function promote(limit)
  local due = call('ZRANGE', W, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
  if #due == 0 then
    return 0
  end
  local from, to = {}, {}
  for i = 1, #due, 2 do
    local member = due[i]
    from[#from + 1] = member
    to[#to + 1] = string.byte(member, -1) * LEVEL + tonumber(due[i + 1])
    to[#to + 1] = string.sub(member, 1, -2)
  end
  call('ZREM', W, unpack(from))
  call('ZADD', R, unpack(to))
  return #from
end
