-- What goes with a job. An entry of a key: number 6 bytes, print 32, free at 8 (0: its job is not done), the job's id.

-- The entries of its history: the first 10 and the last 40 attempts, the first and the last failure.
local function history_of(n, progress)
  local recorded = struct.unpack('>I4', progress, 13)
  local fields = { n .. '0', n .. '1' }
  for seq = 1, math.min(recorded, 10) do
    fields[#fields + 1] = n .. struct.pack('>I4', seq)
  end
  for seq = math.max(11, recorded - 39), recorded do
    fields[#fields + 1] = n .. struct.pack('>I4', seq)
  end
  return fields
end

-- Its key is free.
local function drop_key(n, x)
  if not x or x.key == '' then
    return
  end
  local entry = call('HGET', K, x.key)
  if entry and string.sub(entry, 1, 6) == n then
    call('HDEL', K, x.key)
    call('ZREM', F, x.key)
  end
end

-- The job is done; its key is held until its retention is over.
local function finish_key(n, x, retention, keys_max)
  local entry = x and x.key ~= '' and call('HGET', K, x.key)
  if not entry or string.sub(entry, 1, 6) ~= n then
    return
  end
  local free_at = x.enqueued_at + retention
  if free_at <= now then
    call('HDEL', K, x.key)
    return
  end
  call('HSET', K, x.key, string.sub(entry, 1, 38) .. struct.pack('>I8', free_at) .. string.sub(entry, 47))
  call('ZADD', F, free_at, x.key)
  if call('ZCARD', F) > keys_max then
    local oldest = call('ZPOPMIN', F)
    call('HDEL', K, oldest[1])
  end
end

-- The job is gone for good, with all that hung on it but its key.
local function remove(n, x)
  if x then
    if x.id ~= '' then
      call('HDEL', I, x.id)
    end
    if x.deadline > 0 then
      call('ZREM', E, n)
    end
    call('HDEL', X, n)
  end
  local progress = call('HGET', P, n)
  if progress then
    call('HDEL', H, unpack(history_of(n, progress)))
    call('HDEL', P, n)
  end
  call('HDEL', J, n)
  call('HDEL', B, n)
end
