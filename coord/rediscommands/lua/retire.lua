#!lua
-- Takes an aggregate away whose log ends as it was read; the log is kept beside its place.
-- KEYS     metadata, events, leases, reports, the place for the log
-- ARGV     1 id of the log's last entry, 2 the chain value after it
-- Returns  1 when it is gone, 0 when its log ends otherwise
-- include: rights
-- include: log_end
-- include: log
local last, highest = log_end(KEYS[2])
if not last then
  return redis.call('EXISTS', KEYS[1]) == 0 and highest == '0-0' and 1 or 0
end
if last[1] ~= ARGV[1] or field(last, 'chain') ~= ARGV[2] then
  return 0
end
local refusal = denied({{'RENAME', KEYS[2], KEYS[5]}, {'DEL', KEYS[1]}})
if refusal then
  return redis.error_reply(refusal)
end
redis.call('RENAME', KEYS[2], KEYS[5])
redis.call('DEL', KEYS[1], KEYS[3], KEYS[4])
return 1
