#!lua
-- Destroys a Redis consumer group of a shard.
-- KEYS     shard
-- ARGV     1 the group's name
-- Returns  how many of its entries were pending, or -1 when there was no such group
local shard, name = KEYS[1], ARGV[1]
if redis.call('TYPE', shard)['ok'] ~= 'stream' then
  return -1
end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', shard)) do
  if group[2] == name then
    local pending = redis.call('XPENDING', shard, name)[1]
    redis.call('XGROUP', 'DESTROY', shard, name)
    return pending
  end
end
return -1
