#!lua
-- Takes an aggregate's mutex, or keeps it when it is held under this token already.
-- KEYS     mutex
-- ARGV     1 token, 2 ttl in ms, which runs from now
-- Returns  1 when it is held under the token, 0 when another holds it
-- include: types
local why = wrong_type(KEYS, {'string'})
if why then
  return redis.error_reply('WRONGTYPE ' .. why)
end
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
