-- Which jobs a take takes: the first positions of ready, under a rule without limits. Goes on in lease.lua. A queue that has had a
-- group, or limits, need take_groups.lua. KEYS: those of lib.lua, 5–9 see lease.lua. ARGV: see lease.lua.
local state, wanted = call('HMGET', S, 'generation', 'keyed', '\255\255', '\0\0'), tonumber(ARGV[4])
if state[1] ~= ARGV[1] then return { -2 } end
if state[2] then return { -4 } end
if clock_is_off() then return { -3 } end
if (state[3] or NEW) ~= sub(ARGV[13], 3, 15) then return { -1 } end
local promoted, promoted_ready = promote(ARGV[7])
local is_same = (state[4] or NEW) == sub(ARGV[14], 3, 15)
local only, line, from, changed, stops = { epoch = sub(ARGV[14], 4, 7), flags = byte(ARGV[14], 16) }, {}, {}, {}, {}
if not is_same then changed[1] = 0 end
if is_same and wanted > 0 then line = call('ZRANGE', READY, '0', wanted - 1) end
