-- Stands behind lib.lua where groups or limits are in play: a queue that never had a group does without.
-- KEYS: 5 keyed (position, score 0: a group is a range), 6 heads (group by rank and ready_at of its first position in keyed,
--   unless it is held).
local KEYED, HEADS = KEYS[5], KEYS[6]
grouped = true

-- Ready positions of a group, behind the first `offset`.
local function positions(group, offset, limit)
  if group == NONE then return call('ZRANGE', READY, offset, offset + limit - 1) end
  return call('ZRANGE', KEYED, '[' .. group, '(' .. group .. '\255\255', 'BYLEX', 'LIMIT', offset, limit)
end

-- Groups whose positions or versions changed, and how many positions they got. Heads follow from them; nothing else writes heads.
touched = {}
touch = function(group, count) touched[group] = (touched[group] or 0) + count end
derive_heads = function()
  for group in pairs(touched) do
    local first = byte(call('HGET', S, group) or NONE) < 2 and positions(group, 0, 1)[1]
    if first then
      local rank, ready_at = struct.unpack('>I1I6', first, 3)
      call('ZADD', HEADS, rank * 2 ^ 45 + ready_at, group)
    else
      call('ZREM', HEADS, group)
    end
  end
end

-- Whether a group that is not held has something and had nothing before.
has_new_group = function()
  for group, count in pairs(touched) do
    if count > 0 and call('ZSCORE', HEADS, group) and not positions(group, count, 1)[1] then return true end
  end
end
