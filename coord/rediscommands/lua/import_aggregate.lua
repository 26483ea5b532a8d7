#!lua
-- Puts an aggregate as it stands in another store beside the log that makes it, or takes away what stands beside a deleted one's.
-- KEYS     metadata, events, leases, reports
-- ARGV     1 id of the log's last entry, 2 the chain value after it, 3 '1' if there is an aggregate; then the fields of the
--          hash in pairs
-- Returns  {'written'} or {'moved', id of the last entry} or {'corrupt', why}
-- include: types
-- include: log_end
-- include: log
local metadata, events = KEYS[1], KEYS[2]
local why = wrong_type(KEYS, {'hash', 'stream', 'zset', 'hash'})
if why then
  return {'corrupt', why}
end
local last, highest = log_end(events)
if not last or last[1] ~= ARGV[1] or highest ~= ARGV[1] or field(last, 'chain') ~= ARGV[2] then
  return {'moved', highest}
end
if ARGV[3] == '0' then
  redis.call('DEL', metadata, KEYS[3], KEYS[4])
  return {'written'}
end
for at = 4, #ARGV, 2 do
  redis.call('HSET', metadata, ARGV[at], ARGV[at + 1])
end
return {'written'}
