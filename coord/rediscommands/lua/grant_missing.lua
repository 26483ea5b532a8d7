#!lua
-- Gives a whole lease to each member that has no lease entry; nothing where the group does not exist.
-- KEYS     metadata, leases
-- ARGV     1 lease ttl in ms; then the members
-- Returns  {'granted', how many} or {'corrupt', why}
-- include: types
-- include: clock
local metadata, leases = KEYS[1], KEYS[2]
local why = wrong_type(KEYS, {'hash', 'zset'})
if why then
  return {'corrupt', why}
end
if redis.call('EXISTS', metadata) == 0 then
  return {'granted', 0}
end
local deadline, granted = whole(now_ms() + tonumber(ARGV[1])), 0
for place = 2, #ARGV do
  granted = granted + redis.call('ZADD', leases, 'NX', deadline, ARGV[place])
end
return {'granted', granted}
