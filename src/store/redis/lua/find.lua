-- Whether the queue has a job of this id. Reads only.
-- ARGV: 2 id, 3 the number that it carries and 4 its 16 bytes (both empty: it carries none).
-- Reply: now, its number (empty: none).
return { now, find(ARGV[2], ARGV[3], ARGV[4]) or '' }
