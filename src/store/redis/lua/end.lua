-- Deliveries end without an Ack, as the server has judged: all of them or none. Repeat-safe by the leases, which must be
-- as they were judged, as must the breaker.
-- ARGV: 2 the breaker as it was ('*': whatever it is), 3 as it is now (empty: no other), 4 '1': probes from before are none
--   any more, 5 the tally as it is now (empty: no other), 6 as it was, 7 bytes of failures that are in it now, 8 what to add
--   to the failures if the tally is another by now (empty: nothing); then for each 21: number, lease, kind ('w' it waits,
--   'd' it is dead, 'r' it is removed as cancelled), progress, sequence of the attempt (4 bytes; empty: none is kept), attempt, sequence of one to forget (empty: none),
--   failure (empty: none), time, tie, level, '1' to watch its deadline, '1' failed, '1' retried, '1' expired, and six for a
--   burial; '1' as that burial's fifth for one that is removed after a retry.
-- Reply: now, jobs available (0: none was added, and no probe came back), what is counted if others counted at the same time
--   (a list: tally, failures, successes; otherwise empty), then for each: state, and for one that is dead
--   death, overflow and whether there was no room. Or now and -1: something is not as it was.
local function keep(n, at)
  local seq, attempt, forget, failure = unpack(ARGV, at + 4, at + 7)
  if seq ~= '' then
    call('HSET', H, n .. seq, attempt)
  end
  if forget ~= '' then
    call('HDEL', H, n .. forget)
  end
  if failure ~= '' then
    local which = call('HEXISTS', H, n .. '0') == 1 and '1' or '0'
    call('HSET', H, n .. which, failure)
  end
end

local function cancelled(n, burial_of)
  local x = extras(n)
  drop_key(n, x)
  remove(n, x)
  call('HINCRBY', S, 'cancelled', 1)
  if burial_of.retried then
    call('HINCRBY', S, 'retried_finished', 1)
  end
end

local function count(name, flag)
  if flag == '1' then
    call('HINCRBY', S, name, 1)
  end
end

-- Nobody's count is lost, and nobody waits for another: what was put together without knowing of others' failures is kept
-- beside them. Says what is counted then.
local function keep_count(after, before, known, failures)
  if after == '' then
    return {}
  end
  local tally, fails, wins = counted()
  if tally == before then
    set_tally(after, fails, known)
    if #fails == known then
      return {}
    end
  elseif failures ~= '' then
    local before_it = #wins == 24 and string.sub(wins, 1, 16) or string.rep('\0', 16)
    call('HSET', S, 'fails', fails .. before_it .. failures)
  end
  return { counted() }
end

local function apply(at)
  local n, lease, kind, progress = unpack(ARGV, at, at + 3)
  local time, tie, level, watch, failed, retried, expired = unpack(ARGV, at + 8, at + 14)
  end_lease(n, lease)
  if kind == 'r' then
    cancelled(n, burial(at + 15))
    return { 4 }
  end
  call('HSET', P, n, progress)
  keep(n, at)
  count('failed_attempts', failed)
  count('retries', retried)
  count('lease_expired', expired)
  if kind == 'd' then
    return { 5, bury(n, burial(at + 15)) }
  end
  local state = wait(tie, tonumber(level), tonumber(time))
  if watch == '1' then
    local x = extras(n)
    if x and x.deadline > 0 then
      call('ZADD', E, x.deadline, n)
    end
  end
  return { state }
end

if ARGV[2] ~= '*' and breaker('work') ~= ARGV[2] then
  return { now, -1 }
end
for at = 9, #ARGV, 21 do
  if call('HGET', O, ARGV[at]) ~= ARGV[at + 1] then
    return { now, -1 }
  end
end
local reply, ready = { now, 0, keep_count(ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]) }, 0
for at = 9, #ARGV, 21 do
  local item = apply(at)
  ready = ready + ((item[1] == 2 or has(ARGV[at + 1], PROBE)) and 1 or 0)
  reply[#reply + 1] = item
end
if ARGV[3] ~= '' then
  call('HSET', S, 'work', ARGV[3])
end
if ARGV[4] == '1' then
  call('DEL', U)
  call('PUBLISH', S, 'breaker')
end
used()
if ready > 0 then
  reply[2] = hint(ready)
end
return reply
