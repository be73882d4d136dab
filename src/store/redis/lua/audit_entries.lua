-- Whether entries of one of a queue's keys lead where they should, for an audit. Reads only.
-- ARGV: 2 the letter of the key, then members or fields.
-- Reply: now, then for each: 0 it does, or is gone by now; 1 its job is not there; 2 it leads there wrongly.
local there = function(n)
  return call('HEXISTS', J, n) == 1
end

-- Each says what is wrong with an entry, after a look whether it is still there.
local checks = {
  r = function(entry)
    local n = string.sub(entry, -6)
    return call('ZSCORE', R, entry) and (not there(n) and 1 or tie_of(n) ~= entry and 2)
  end,
  w = function(entry)
    local n = string.sub(entry, -7, -2)
    if not call('ZSCORE', W, entry) then
      return 0
    end
    local record = call('HGET', J, n)
    return not record and 1 or tie_of(n) .. string.sub(record, 5, 5) ~= entry and 2
  end,
  l = function(n)
    return call('ZSCORE', L, n) and (not there(n) and 1 or call('HEXISTS', O, n) == 0 and 2)
  end,
  o = function(n)
    return call('HEXISTS', O, n) == 1 and (not there(n) and 1 or not call('ZSCORE', L, n) and 2)
  end,
  d = function(n)
    return call('ZSCORE', D, n) and (not there(n) and 1 or call('HEXISTS', G, n) == 0 and 2)
  end,
  v = function(n)
    local score = call('ZSCORE', V, n)
    return score and (not there(n) and 1 or call('ZSCORE', D, n) ~= score and 2)
  end,
  g = function(n)
    local record = call('HGET', G, n)
    if not record then
      return 0
    end
    local death = tonumber(call('ZSCORE', D, n) or -1)
    return not there(n) and 1 or struct.unpack('>I8', record) ~= death and 2
  end,
  z = function(n)
    return call('ZSCORE', Z, n) and not there(n) and 1
  end,
  e = function(n)
    local score = call('ZSCORE', E, n)
    if not score then
      return 0
    end
    local x = extras(n)
    return not there(n) and 1 or (not x or x.deadline ~= tonumber(score)) and 2
  end,
  i = function(id)
    local entry = call('HGET', I, id)
    if not entry then
      return 0
    end
    local n = string.sub(entry, 1, 6)
    local x = extras(n)
    return not there(n) and 1 or (not x or x.id ~= id) and 2
  end,
  k = function(key)
    local entry = call('HGET', K, key)
    if not entry then
      return 0
    elseif struct.unpack('>I8', entry, 39) > 0 then
      return not call('ZSCORE', F, key) and 2
    end
    local n = string.sub(entry, 1, 6)
    local x = extras(n)
    return not there(n) and 1 or (not x or x.key ~= key) and 2
  end,
  f = function(key)
    local entry = call('HGET', K, key)
    return call('ZSCORE', F, key) and (not entry or struct.unpack('>I8', entry, 39) == 0) and 2
  end,
  h = function(field)
    return call('HEXISTS', H, field) == 1 and not there(string.sub(field, 1, 6)) and 1
  end,
  m = function(n)
    return call('HEXISTS', M, n) == 1 and (not there(n) and 1 or call('HEXISTS', G, n) == 0 and 2)
  end,
}
for letter, key in pairs({ b = B, x = X, p = P, q = Q }) do
  checks[letter] = function(n)
    return call('HEXISTS', key, n) == 1 and not there(n) and 1
  end
end

local check, reply = checks[ARGV[2]], { now }
for i = 3, #ARGV do
  reply[#reply + 1] = check(ARGV[i]) or 0
end
return reply
