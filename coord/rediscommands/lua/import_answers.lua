#!lua
-- Remembers answers to keyed mutations as they stand in another store, in place of all that were remembered.
-- KEYS     answers, order
-- ARGV     1 how long they are kept, ms; then three arguments each: name, answer, when it was put (ms)
-- Returns  how many there are
redis.call('DEL', KEYS[1], KEYS[2])
for at = 2, #ARGV, 3 do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
  redis.call('ZADD', KEYS[2], ARGV[at + 2], ARGV[at])
end
if #ARGV > 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  redis.call('PEXPIRE', KEYS[2], ARGV[1])
end
return redis.call('HLEN', KEYS[1])
