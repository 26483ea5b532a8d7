#!lua
-- Removes a shard that is proved drained at this moment, or says what is in the way.
-- KEYS     shard
-- Returns  as prove_drained; when empty, the key is gone
-- include: drained
local blockers = blockers_of(KEYS[1])
if #blockers == 0 then
  redis.call('DEL', KEYS[1])
end
return blockers
