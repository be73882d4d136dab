-- Claim: the first in line are leased. What nobody should get any more is for the server to tell, under the lease.
-- ARGV: 2 jobs at most, 3 bytes at most, 4 '1': one job fits in any case, 5 how many may be promoted, 6 milliseconds of
--   the lease, 7 worker, 8 request, 9 answer, 10 a nonce of 8 bytes for each job; 11 the breaker that the server knows, 12
--   its transitions in 8 bytes, 13 'a' it lets all through, 'h' nothing, 'o' nothing until 14 and then probes: 15 so many
--   at the same time, each for 16 milliseconds; 17 the number and 18 the beginning of a place that is passed over where
--   there is another.
-- Reply: now, jobs available after this, end of the pause (-2: none, -1: no end), promoted, first due time (-1: none),
--   '1' if the bytes were not enough, the gate (0 all, 1 probes, 2 all of them are out, 3 held back) and until when (-1:
--   unknown), then for each job: number, ready at, record, body, progress, failure, lease. Or now, -1 and the breaker, if
--   that is another one.
local most, room, one_fits = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local duration, worker, request, answer = tonumber(ARGV[6]), ARGV[7], ARGV[8], ARGV[9]

local function first_due()
  local first = call('ZRANGE', W, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) or -1
end

local work = breaker('work')
if work ~= ARGV[11] then
  return { now, -1, work }
end

-- What the breaker lets through: which gate, until when, how many.
local function gate()
  if ARGV[13] == 'a' then
    return 0, -1, most
  end
  local probe_at = tonumber(ARGV[14])
  if ARGV[13] == 'h' or now < probe_at then
    return 3, probe_at, 0
  end
  local recovery = tonumber(ARGV[16])
  local out = call('ZRANGE', U, '(' .. string.format('%.0f', now - recovery), '+inf', 'BYSCORE', 'WITHSCORES')
  local free = tonumber(ARGV[15]) - #out / 2
  if free <= 0 then
    return 2, out[2] + recovery, 0
  end
  return 1, -1, math.min(most, free)
end

local promoted = promote(tonumber(ARGV[5]))
local which, gate_until, width = gate()
if paused() or width == 0 then
  return { now, available(), pause() or -2, promoted, first_due(), 0, which, gate_until }
end

-- The first in line; a probe that failed comes only where there is no other.
local function first()
  local line = call('ZRANGE', R, 0, which == 1 and width or width - 1, 'WITHSCORES')
  if which == 1 and #line > 2 then
    for i = 1, #line, 2 do
      local own = string.sub(line[i], 1, -7) == ARGV[18] and ARGV[18] ~= ''
      if line[i] == ARGV[17] or own then
        table.remove(line, i)
        table.remove(line, i)
        break
      end
    end
  end
  line[width * 2 + 1], line[width * 2 + 2] = nil, nil
  return line
end

local line = first()
local numbers = {}
for i = 1, #line, 2 do
  numbers[#numbers + 1] = string.sub(line[i], -6)
end
if #numbers == 0 then
  return { now, 0, -2, promoted, first_due(), 0, which, gate_until }
end
local records, progress = call('HMGET', J, unpack(numbers)), call('HMGET', P, unpack(numbers))

-- What has been tried before: deliveries, tries, whether it was retried; and what the job takes in a reply.
local function history(record, before)
  local size = record and #record > 4 and struct.unpack('>I4', record) or 0
  if not before then
    return size, 0, 0, 0
  end
  local more, deliveries, tries = struct.unpack('>I4I4I4', before)
  return size + more, deliveries, tries, string.byte(before, 17) == 1 and RETRIED or 0
end

local function lease(i, at, deliveries, tries, traits)
  local nonce = string.sub(ARGV[10], i * 8 - 7, i * 8)
  return struct.pack('>I4', deliveries + 1) .. nonce
    .. struct.pack('>I1I4I8I8I8I8', traits, tries + 1, now, now + duration, duration, at)
    .. answer .. struct.pack('>I8', 0) .. ARGV[12] .. struct.pack('>I2', #worker) .. worker .. struct.pack('>I2', #request) .. request
end

local jobs, gone, expiries, leases = {}, {}, {}, {}
local full = 0
for i, n in ipairs(numbers) do
  local size, deliveries, tries, traits = history(records[i], progress[i])
  if size > room and not (one_fits and #jobs == 0) then
    full = 1
    break
  end
  room = room - size
  local at = line[i * 2] % LEVEL
  local out = lease(i, at, deliveries, tries, traits + (which == 1 and PROBE or 0))
  jobs[i] = { n, at, records[i] or '', '', progress[i] or '', '', out }
  gone[i] = line[i * 2 - 1]
  expiries[#expiries + 1] = now + duration
  expiries[#expiries + 1] = n
  leases[#leases + 1] = n
  leases[#leases + 1] = out
end

if #jobs > 0 then
  call('ZREM', R, unpack(gone))
  call('ZADD', L, unpack(expiries))
  call('HSET', O, unpack(leases))
  if which == 1 then
    for i = 1, #jobs do
      call('ZADD', U, now, numbers[i])
    end
  end
  if request ~= '' then
    local taken = {}
    for i = 1, #jobs do
      taken[i] = numbers[i]
    end
    call('HSET', C, request, (call('HGET', C, request) or '') .. table.concat(taken))
  end
  used()
end
for _, job in ipairs(jobs) do
  if #job[3] > 5 and string.byte(job[3], 6) >= 4 then
    job[4] = call('HGET', B, job[1]) or ''
  end
  if job[5] ~= '' then
    local failures = call('HMGET', H, job[1] .. '1', job[1] .. '0')
    job[6] = failures[1] or failures[2] or ''
  end
end
local reply = { now, available(), -2, promoted, first_due(), full, which, gate_until }
for _, job in ipairs(jobs) do
  reply[#reply + 1] = job
end
return reply
