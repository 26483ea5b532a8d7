-- The entries of a lease set that are no member: when it was last looked at, and until when a grace runs.
-- Both begin with NUL, which no member id can hold.
local LOOKED, GRACE = '\0looked', '\0grace'

local function is_member(entry)
  return string.byte(entry) ~= 0
end

-- How many members' deadlines are at least `from` (a number, or `(` and a number: above it).
local function leases_from(leases, from, holds)
  local count = redis.call('ZCOUNT', leases, from, '+inf')
  for _, reserved in ipairs({LOOKED, GRACE}) do
    local score = redis.call('ZSCORE', leases, reserved)
    if score and holds(tonumber(score)) then
      count = count - 1
    end
  end
  return count
end
