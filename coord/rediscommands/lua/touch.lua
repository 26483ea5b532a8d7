#!lua
-- Tells whether a cached aggregate is current and, if so, renews leases and stores reports of its members.
-- KEYS     metadata, leases, reports
-- ARGV     1 identity source, 2 cached identity, 3 cached revision, 4 cached commit id, 5 lease ttl in ms, 6 how many members
--          to renew, then those, then pairs (member, report)
-- Returns  {'touched', 1 when current, stored revision ('0': none), identity, now} or {'corrupt', why}
-- include: types
-- include: clock
-- include: identity
local metadata, leases, reports = KEYS[1], KEYS[2], KEYS[3]
local why = wrong_type(KEYS, {'hash', 'zset', 'hash'})
if why then
  return {'corrupt', why}
end
local now, store = now_ms(), identity(ARGV[1])
local stored = redis.call('HMGET', metadata, 'revision', 'commitId')
if store ~= ARGV[2] or stored[1] ~= ARGV[3] or stored[2] ~= ARGV[4] then
  return {'touched', 0, stored[1] or '0', store, now}
end
local first_report = 7 + tonumber(ARGV[6])
local deadline = whole(now + tonumber(ARGV[5]))
for at = 7, first_report - 1 do
  redis.call('ZADD', leases, 'GT', deadline, ARGV[at])
end
for at = first_report, #ARGV, 2 do
  redis.call('HSET', reports, ARGV[at], ARGV[at + 1])
end
return {'touched', 1, stored[1], store, now}
