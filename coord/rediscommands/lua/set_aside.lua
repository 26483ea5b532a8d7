#!lua
-- Copies what another coordinator stored to a key beside it, as it was read; the key itself stays as it is.
-- KEYS     the key, the one beside it
-- ARGV     1 the JSON as it was read
-- Returns  'aside', also when it was there already, 'changed': the key holds something else, or 'taken': the one beside it does
-- include: foreign
if foreign_text(KEYS[1]) ~= ARGV[1] then
  return 'changed'
end
local beside = foreign_text(KEYS[2])
if beside == false then
  redis.call('COPY', KEYS[1], KEYS[2])
elseif beside ~= ARGV[1] then
  return 'taken'
end
return 'aside'
