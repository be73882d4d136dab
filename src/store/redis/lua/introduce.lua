-- A server says that it is there, and by which settings it judges; those that have not said so for a while are dropped.
-- KEYS: 1 the servers: id to when its note ends (8 bytes) and the note.
-- ARGV: 1 store time in milliseconds (empty: Redis' own), 2 the server's id, 3 how long its note counts in milliseconds (0:
--   it goes), 4 the note.
-- Reply: the notes of all servers that are there.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local kept = tonumber(ARGV[3])
if kept > 0 then
  redis.call('HSET', KEYS[1], ARGV[2], struct.pack('>I8', now + kept) .. ARGV[4])
  redis.call('PEXPIRE', KEYS[1], kept)
else
  redis.call('HDEL', KEYS[1], ARGV[2])
end
local notes = {}
local servers = redis.call('HGETALL', KEYS[1])
for at = 1, #servers, 2 do
  if struct.unpack('>I8', servers[at + 1]) > now then
    notes[#notes + 1] = string.sub(servers[at + 1], 9)
  else
    redis.call('HDEL', KEYS[1], servers[at])
  end
end
return notes
