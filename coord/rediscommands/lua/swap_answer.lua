#!lua
-- Puts an answer in the place of what the caller saw there; beyond a number the oldest go, and all go some time after the last.
-- KEYS     answers, order
-- ARGV     1 name, 2 what was seen there ('': nothing), 3 what is put ('': nothing), 4 answers kept, 5 how long, ms,
--          6 1 to drop all the others
-- Returns  {1 when it was put, what was there ('': nothing), now}
-- include: clock
-- include: types
local answers, order, name, put = KEYS[1], KEYS[2], ARGV[1], ARGV[3]
local why = wrong_type(KEYS, {'hash', 'zset'})
if why then
  return redis.error_reply('WRONGTYPE ' .. why)
end
local now = now_ms()
local there = redis.call('HGET', answers, name) or ''
if there ~= ARGV[2] then
  return {0, there, now}
end
if ARGV[6] == '1' then
  redis.call('DEL', answers, order)
end
if put == '' then
  redis.call('HDEL', answers, name)
  redis.call('ZREM', order, name)
  return {1, there, now}
end
redis.call('HSET', answers, name, put)
redis.call('ZADD', order, whole(now), name)
while redis.call('ZCARD', order) > tonumber(ARGV[4]) do
  redis.call('HDEL', answers, redis.call('ZPOPMIN', order)[1])
end
redis.call('PEXPIRE', answers, ARGV[5])
redis.call('PEXPIRE', order, ARGV[5])
return {1, there, now}
