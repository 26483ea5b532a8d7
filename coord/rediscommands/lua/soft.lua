#!lua flags=no-writes
-- Reads all leases and reports of a group.
-- KEYS     leases, reports
-- Returns  {'soft', flat list of member and deadline, flat list of member and report, now} or {'corrupt', why}
-- include: types
-- include: clock
-- include: leases
local why = wrong_type(KEYS, {'zset', 'hash'})
if why then
  return {'corrupt', why}
end
local found, deadlines = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'), {}
for place = 1, #found, 2 do
  if is_member(found[place]) then
    deadlines[#deadlines + 1] = found[place]
    deadlines[#deadlines + 1] = tonumber(found[place + 1])
  end
end
return {'soft', deadlines, redis.call('HGETALL', KEYS[2]), now_ms()}
