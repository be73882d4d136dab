-- Everything about jobs, for an audit. Reads only.
-- ARGV: from 2 on, numbers.
-- Reply: now, then for each: record, body, extras, progress, lease, death, result, the scores of its places (ready,
--   scheduled, leased, dead, overflow, completed) and of its deadline, the entry of its id, the entry of its key, the first
--   and the last failure, the attempts that should be there. Empty: there is none. An empty list: the job is gone.
local function job(n)
  local record = call('HGET', J, n)
  if not record then
    return {}
  end
  local x = extras(n)
  local tie = tie_of(n)
  local progress = call('HGET', P, n) or ''
  local first, last, attempts = '', '', {}
  if #progress >= 17 then
    local fields = history_of(n, progress)
    local entries = call('HMGET', H, unpack(fields))
    first, last = entries[1] or '', entries[2] or ''
    for i = 3, #fields do
      attempts[#attempts + 1] = entries[i] or ''
    end
  end
  return {
    record, call('HGET', B, n) or '', call('HGET', X, n) or '', progress, call('HGET', O, n) or '', call('HGET', G, n) or '',
    call('HGET', Q, n) or '', call('ZSCORE', R, tie) or '', call('ZSCORE', W, tie .. string.sub(record, 5, 5)) or '',
    call('ZSCORE', L, n) or '', call('ZSCORE', D, n) or '', call('ZSCORE', V, n) or '', call('ZSCORE', Z, n) or '',
    call('ZSCORE', E, n) or '', x and x.id ~= '' and call('HGET', I, x.id) or '',
    x and x.key ~= '' and call('HGET', K, x.key) or '', first, last, attempts,
  }
end

local reply = { now }
for i = 2, #ARGV do
  reply[#reply + 1] = job(ARGV[i])
end
return reply
