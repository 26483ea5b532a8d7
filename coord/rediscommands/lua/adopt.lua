#!lua
-- Begins an aggregate in the place of another coordinator's hash, or writes nothing.
-- KEYS     metadata, events, leases, reports
-- ARGV     1 identity source, 2 identity of the decision, 3 the other coordinator's JSON as it was read, 4 id of this commit,
--          5 aggregate, 6 schema version, 7 layout version, 8 lease ttl in ms, 9 how many entries, then those (id, event, chain),
--          then the members that are given a lease
-- Returns  {'adopted', now}, or {'changed', what}: the hash is another one, there is a log, or the store is another one
-- include: types
-- include: rights
-- include: clock
-- include: iso
-- include: identity
-- include: log_end
-- include: log
-- include: foreign
local metadata, events, leases = KEYS[1], KEYS[2], KEYS[3]
local now, store = now_ms(), identity(ARGV[1])
local why = wrong_type(KEYS, {'hash', 'stream', 'zset', 'hash'})
if why then
  return {'changed', why}
end
local there = foreign_text(metadata)
if there ~= false and (there ~= ARGV[3] or redis.call('HGET', metadata, 'schemaVersion') ~= '1') then
  return {'changed', metadata .. ' is not as it was read'}
end
local _, highest = log_end(events)
if highest ~= '0-0' then
  return {'changed', events .. ' is there already'}
end
if store ~= ARGV[2] then
  return {'changed', 'the store is another one now'}
end
local refusal = denied({{'XADD', events}, {'DEL', metadata}, {'HSET', metadata}, {'ZADD', leases}})
if refusal then
  return redis.error_reply(refusal)
end
local last = 10 + 3 * (tonumber(ARGV[9]) - 1)
for at = 10, last, 3 do
  redis.call('XADD', events, ARGV[at], 'event', ARGV[at + 1], 'chain', ARGV[at + 2], 'commit', ARGV[4])
end
-- Every field that is left of the other hash would be read as ours.
redis.call('DEL', metadata, leases, KEYS[4])
redis.call('HSET', metadata, 'aggregate', ARGV[5], 'revision', string.match(ARGV[last], '^%d+'), 'schemaVersion', ARGV[6],
  'layoutVersion', ARGV[7], 'updatedAt', iso(now), 'commitId', ARGV[4], 'head', ARGV[last], 'chain', ARGV[last + 2],
  'identity', store)
local deadline = whole(now + tonumber(ARGV[8]))
for at = last + 3, #ARGV do
  redis.call('ZADD', leases, deadline, ARGV[at])
end
return {'adopted', now}
