#!lua flags=no-writes
-- Reads one member's lease deadline.
-- KEYS     leases
-- ARGV     1 member
-- Returns  {'lease', deadline or nil, now} or {'corrupt', why}
-- include: types
-- include: clock
local why = wrong_type(KEYS, {'zset'})
if why then
  return {'corrupt', why}
end
local deadline = redis.call('ZSCORE', KEYS[1], ARGV[1])
return {'lease', deadline and tonumber(deadline), now_ms()}
