#!lua
-- Renews an aggregate's mutex where it is still held under this token; one that lapsed is not taken again.
-- KEYS     mutex
-- ARGV     1 token, 2 ttl in ms, which runs from now
-- Returns  1 when it is held, 0 when it was lost
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
