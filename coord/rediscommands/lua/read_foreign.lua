#!lua flags=no-writes
-- Reads what another coordinator stored under a key.
-- KEYS     the key
-- Returns  {type, JSON (nil: none), revision, schemaVersion, layoutVersion (nil for each that is missing)}
-- include: foreign
local kind = redis.call('TYPE', KEYS[1])['ok']
local beside = kind == 'hash' and redis.call('HMGET', KEYS[1], 'revision', 'schemaVersion', 'layoutVersion') or {}
return {kind, foreign_text(KEYS[1]) or false, beside[1] or false, beside[2] or false, beside[3] or false}
