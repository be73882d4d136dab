-- A queue's breakers and what they depend on. Reads only.
-- ARGV: 2 how many probes to tell of.
-- Reply: now, the breakers of the work and of the dead letters, jobs in line (0 while it is paused), dead letters that are
--   not overflow, when the last probes were handed out, what is counted of the work (tally, failures, successes).
local out = call('ZRANGE', U, 0, tonumber(ARGV[2]) - 1, 'REV', 'WITHSCORES')
local probes = {}
for i = 2, #out, 2 do
  probes[#probes + 1] = tonumber(out[i])
end
return {
  now, breaker('work'), breaker('graves'), available(), call('ZCARD', D) - call('ZCARD', V), probes,
  counted(),
}
