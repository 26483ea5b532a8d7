#!lua
-- Gives an aggregate's mutex back where it is still held under this token; another's is left alone.
-- KEYS     mutex
-- ARGV     1 token
-- Returns  1 when it was given back, 0 when it had been lost
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
