#!lua flags=no-writes
-- Tells when anybody ticked last.
-- KEYS     loop
-- Returns  {that time (0: never), now}
-- include: clock
return {tonumber(redis.call('HGET', KEYS[1], 'tickedAt') or 0), now_ms()}
