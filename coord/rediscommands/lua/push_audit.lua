#!lua
-- Adds an audit entry to a list that keeps the newest only.
-- KEYS     list
-- ARGV     1 entry, 2 how many are kept, 3 ms after which the whole list goes ('': never)
-- Returns  1
-- include: types
local list = KEYS[1]
local why = wrong_type(KEYS, {'list'})
if why then
  return redis.error_reply('WRONGTYPE ' .. why)
end
redis.call('RPUSH', list, ARGV[1])
redis.call('LTRIM', list, '-' .. ARGV[2], -1)
if ARGV[3] == '' then
  redis.call('PERSIST', list)
else
  redis.call('PEXPIRE', list, ARGV[3])
end
return 1
