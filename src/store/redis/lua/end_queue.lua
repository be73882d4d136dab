-- Third step of forgetting a queue: nothing of it is left.
-- ARGV: 2 the queue's number.
-- Reply: now.
if call('HGET', S, 'number') == ARGV[2] and call('HEXISTS', S, 'closing') == 1 then
  call('DEL', S)
end
return { now }
