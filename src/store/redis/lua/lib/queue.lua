-- What every script on a queue begins with: its keys by their names, store time, and whether it hands anything out.
-- KEYS: all keys of the queue, as `keys.rs` orders them. ARGV[1]: store time in milliseconds; empty: Redis' own.
local S, J, B, X, R, W, L, O, P, H, D, V, G, T, I, K, F, E, C, M, A, N, Y, U, Z, Q = unpack(KEYS)
local call = redis.call

local now
if ARGV[1] ~= '' then
  now = tonumber(ARGV[1])
else
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The end of its pause; -1: none until it is resumed.
local function pause()
  local until_ms = call('HGET', S, 'pause')
  return until_ms and tonumber(until_ms)
end

local function paused()
  local until_ms = pause()
  return until_ms and (until_ms < 0 or until_ms > now)
end

-- Jobs that it could hand out now.
local function available()
  return paused() and 0 or call('ZCARD', R)
end

-- A breaker as it is kept: 'work' or 'graves'. Its first byte is 1 while it is at rest; empty: it is as new.
local function breaker(name)
  return call('HGET', S, name) or ''
end

-- Tells the other servers, if nobody knew before that there is something: so many have just come into line.
local function hint(added)
  local jobs = available()
  if jobs > 0 and jobs <= added then
    call('PUBLISH', S, jobs)
  end
  return jobs
end

local function used()
  call('HSET', S, 'used', now)
end

-- Whether this is the queue that the server means, and not one that was forgotten meanwhile.
local function is_queue(number)
  local number_here, closing = unpack(call('HMGET', S, 'number', 'closing'))
  return number_here == number and not closing
end
