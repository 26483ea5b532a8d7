#!lua flags=no-writes
-- Tells a key's type, `none` when it does not exist.
-- KEYS     the key
-- Returns  the type
return redis.call('TYPE', KEYS[1])['ok']
