#!lua
-- Makes a shard and its Redis consumer groups where they are missing; groups that exist are not moved.
-- KEYS     shard
-- ARGV     pairs of a Redis consumer group's name and the id that it starts after
-- Returns  {'provisioned', 1 when the key was made here, the groups that were made here} or {'corrupt', why}
-- include: types
-- include: rights
local MAKER = '\0coord-provisioning'
local shard = KEYS[1]
local why = wrong_type(KEYS, {'stream'})
if why then
  return {'corrupt', why}
end
local refusal = denied({{'XGROUP', 'CREATE', shard}, {'XGROUP', 'DESTROY', shard}})
if refusal then
  return redis.error_reply(refusal)
end
local is_new, made, existing = redis.call('EXISTS', shard) == 0, {}, {}
if is_new then
  -- A stream comes into being with a Redis consumer group or an entry only.
  redis.call('XGROUP', 'CREATE', shard, MAKER, '0', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', shard, MAKER)
else
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', shard)) do
    existing[group[2]] = true
  end
end
for place = 1, #ARGV, 2 do
  if not existing[ARGV[place]] then
    redis.call('XGROUP', 'CREATE', shard, ARGV[place], ARGV[place + 1])
    made[#made + 1] = ARGV[place]
  end
end
return {'provisioned', is_new and 1 or 0, made}
