-- Jobs that wait past their deadline die; one that runs is judged when its delivery ends. Repeat-safe by the place.
-- ARGV: for each from 2 on, 8: number, time of the deadline, and six for a burial.
-- Reply: now, then for each: 0, death, overflow and whether there was no room; or 1 if it does not wait.
local reply = { now }
for at = 2, #ARGV, 8 do
  local n = ARGV[at]
  local item = { 1 }
  local deadline = call('ZSCORE', E, n)
  if deadline and tonumber(deadline) == tonumber(ARGV[at + 1]) then
    call('ZREM', E, n)
    local state, _, member = where(n)
    if state == 1 or state == 2 then
      call('ZREM', state == 2 and R or W, member)
      item = { 0, bury(n, burial(at + 2)) }
      used()
    end
  end
  reply[#reply + 1] = item
end
return reply
