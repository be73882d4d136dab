-- A queue that has been made gets its number, unless it has one.
-- ARGV: 2 the number.
-- Reply: now, 1 if the number is its own, 0 if it has another or is being forgotten.
if call('HEXISTS', S, 'number') == 0 then
  call('HSET', S, 'number', ARGV[2])
  used()
end
return { now, is_queue(ARGV[2]) and 1 or 0 }
