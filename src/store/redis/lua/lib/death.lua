-- A death as it is kept: its number 8 bytes, reason 1, time 8, overflow 1, the depths at that time 8 each (ready, scheduled,
-- leased, dead, overflow), the type under which it is counted with its length in 2, the states of both breakers.
local TYPES_MAX = 1000

-- DEAD, from any state; its place has been given up. `as` has: reason, max_entries, hold_key, error_type, retried,
-- breakers, and until when everything is overflow.
local function bury(n, as)
  local ready, scheduled, leased = call('ZCARD', R), call('ZCARD', W), call('ZCARD', L)
  local dead, spilt = call('ZCARD', D), call('ZCARD', V)
  local full = dead - spilt >= as.max_entries
  local overflow = full or now < as.spill_until
  local death = call('HINCRBY', S, 'deaths', 1)
  local counted = as.error_type
  if call('HEXISTS', T, counted) == 0 and call('HLEN', T) >= TYPES_MAX then
    counted = '(other)'
  end
  call('HINCRBY', T, counted, 1)
  call('ZADD', D, death, n)
  if overflow then
    call('ZADD', V, death, n)
  end
  local depths = struct.pack('>I8I8I8I8I8', ready, scheduled, leased, dead, spilt)
  local head = struct.pack('>I8I1I8I1', death, as.reason, now, overflow and 1 or 0)
  local record = head .. depths .. struct.pack('>I2', #counted) .. counted .. as.breakers
  call('HSET', G, n, record)
  local x = extras(n)
  if x and x.deadline > 0 then
    call('ZREM', E, n)
  end
  if not as.hold_key then
    drop_key(n, x)
  end
  call('HINCRBY', S, 'dead_lettered', 1)
  if as.retried then
    call('HINCRBY', S, 'retried_finished', 1)
  end
  return death, overflow and 1 or 0, full and 1 or 0
end

-- Reads six arguments from this one on: the last has the states of both breakers, and until when all is overflow.
local function burial(at)
  return {
    reason = tonumber(ARGV[at]),
    max_entries = tonumber(ARGV[at + 1]),
    hold_key = ARGV[at + 2] == '1',
    error_type = ARGV[at + 3],
    retried = ARGV[at + 4] == '1',
    breakers = string.sub(ARGV[at + 5], 1, 2),
    spill_until = tonumber(string.sub(ARGV[at + 5], 3)) or 0,
  }
end

-- It is no longer among the dead letters. False: this death is not among them, or on its way to another queue.
local function take_dead(n, death)
  local record = call('HGET', G, n)
  if not record or struct.unpack('>I8', record) ~= death then
    return false
  end
  local length = struct.unpack('>I2', record, 59)
  local counted = string.sub(record, 61, 60 + length)
  if call('HINCRBY', T, counted, -1) <= 0 then
    call('HDEL', T, counted)
  end
  call('ZREM', D, n)
  call('ZREM', V, n)
  call('HDEL', G, n)
  return true
end
