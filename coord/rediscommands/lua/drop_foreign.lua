#!lua
-- Removes what another coordinator stored, where it is as it was read.
-- KEYS     the key
-- ARGV     1 the JSON as it was read
-- Returns  1 when it is gone, 0 when it holds something else
-- include: foreign
local there = foreign_text(KEYS[1])
if there == false then
  return 1
end
return there == ARGV[1] and redis.call('DEL', KEYS[1]) or 0
