-- SCHEDULED to READY now; a READY one stays as it is. One that was due already keeps its place.
-- ARGV: 2 id, 3 the number that it carries and 4 its 16 bytes (both empty: it carries none).
-- Reply: now, the state in which it was found (0: there is none), jobs available (0: none was added).
local n = find(ARGV[2], ARGV[3], ARGV[4])
if not n then
  return { now, 0, 0 }
end
local state, at, member = where(n)
if state == 1 then
  call('ZREM', W, member)
  wait(string.sub(member, 1, -2), string.byte(member, -1), math.min(at, now))
  used()
  return { now, state, hint(1) }
end
return { now, state, 0 }
