-- What is counted of a queue's work while its breaker is closed, for the servers to make sense of (`tally.rs`).
-- wins: transitions of the breaker, successes since, when the last was; 8 bytes each. Those of probes are not among them.
-- fails: failures that are not in the tally yet; for each call the first 16 bytes of the wins at that time, and then what
-- the server says of it. tally: all before, as the server wrote it that put it together.
local function counted()
  local tally, fails, wins = unpack(call('HMGET', S, 'tally', 'fails', 'wins'))
  return tally or '', fails or '', wins or ''
end

-- The server has put together all that it knew, which was this tally and so many bytes of failures.
local function set_tally(tally, fails, known)
  call('HSET', S, 'tally', tally, 'fails', string.sub(fails, known + 1))
end
