#!lua
-- Puts what another coordinator stored back to where it was, unless something else is there.
-- KEYS     the key, the one beside it, where it was kept
-- Returns  'back', 'gone': nothing was kept, or 'taken': something else is there
-- include: foreign
local kept, there = foreign_text(KEYS[2]), foreign_text(KEYS[1])
if not kept then
  return 'gone'
end
if there ~= false and there ~= kept then
  return 'taken'
end
redis.call('COPY', KEYS[2], KEYS[1], 'REPLACE')
return 'back'
