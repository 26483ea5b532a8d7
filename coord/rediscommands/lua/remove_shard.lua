#!lua
-- Removes a shard that never held an entry and has no other Redis consumer groups than these.
-- KEYS     shard
-- ARGV     the names of the Redis consumer groups that may go with it
-- Returns  1 when it was removed
-- include: log_end
local shard = KEYS[1]
if redis.call('TYPE', shard)['ok'] ~= 'stream' then
  return 0
end
local _, highest = log_end(shard)
if redis.call('XLEN', shard) > 0 or highest ~= '0-0' then
  return 0
end
local ours = {}
for _, name in ipairs(ARGV) do
  ours[name] = true
end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', shard)) do
  if not ours[group[2]] then
    return 0
  end
end
redis.call('DEL', shard)
return 1
