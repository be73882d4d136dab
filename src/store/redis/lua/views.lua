-- Jobs as they are. Reads only.
-- ARGV: 2 '1': with bodies that are kept apart, 3 '1': with attempts, 4 stop after so many bytes, then numbers.
-- Reply: now, pause and its reason (empty: none), the breaker of the work, then for each, until the bytes are spent: state, time, rank in line (-1:
--   none), record, body, progress, lease, death, first failure, last failure, result, attempts. An empty list: it is not there.
local bodies, attempts, room = ARGV[2] == '1', ARGV[3] == '1', tonumber(ARGV[4])
local ends, reason = unpack(call('HMGET', S, 'pause', 'pause_reason'))

local function view(n)
  local record = call('HGET', J, n)
  if not record then
    return {}, 0
  end
  local state, at, member = where(n)
  local rank = state == 2 and call('ZRANK', R, member) or -1
  local body = bodies and call('HGET', B, n) or ''
  local progress = call('HGET', P, n) or ''
  local lease, death = call('HGET', O, n) or '', call('HGET', G, n) or ''
  local first, last, history, bytes = '', '', {}, #record + #body
  if progress ~= '' then
    local fields = history_of(n, progress)
    if not attempts then
      fields = { fields[1], fields[2] }
    end
    local entries = call('HMGET', H, unpack(fields))
    first, last = entries[1] or '', entries[2] or ''
    for i = 3, #fields do
      history[#history + 1] = entries[i] or ''
      bytes = bytes + #history[#history]
    end
  end
  local result = bodies and state == 4 and call('HGET', Q, n) or ''
  return { state, at, rank, record, body, progress, lease, death, first, last, result, history }, bytes + #result
end

local reply = { now, ends or '', reason or '', breaker('work') }
for i = 5, #ARGV do
  local item, bytes = view(ARGV[i])
  reply[#reply + 1] = item
  room = room - bytes
  if room <= 0 then
    break
  end
end
return reply
