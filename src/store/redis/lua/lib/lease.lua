-- A lease as it is kept: delivery 4 bytes, nonce 8, traits 1, attempt 4, started 8, expires 8, duration 8, ready at 8,
-- answer 8, given back at 8 (0: it is not), transitions of the breaker 8; worker and request with their lengths in 2; the
-- rest is the checkpoint.
local RETRIED, CANCELLED, PROBE = 16, 32, 64

-- Who asked for it, and where its checkpoint begins.
local function request_of(lease)
  local length = struct.unpack('>I2', lease, 74)
  local from = 76 + length
  local asked = struct.unpack('>I2', lease, from)
  return string.sub(lease, from + 2, from + 1 + asked), from + 2 + asked
end

local function has(lease, trait)
  return bit.band(string.byte(lease, 13), trait) ~= 0
end

-- The lease is over.
local function end_lease(n, lease)
  call('ZREM', L, n)
  call('HDEL', O, n)
  if has(lease, PROBE) then
    call('ZREM', U, n)
  end
  local request = request_of(lease)
  if request ~= '' then
    local all, left = call('HGET', C, request) or '', {}
    for i = 1, #all, 6 do
      local other = string.sub(all, i, i + 5)
      if other ~= n then
        left[#left + 1] = other
      end
    end
    if #left == 0 then
      call('HDEL', C, request)
    else
      call('HSET', C, request, table.concat(left))
    end
  end
end
