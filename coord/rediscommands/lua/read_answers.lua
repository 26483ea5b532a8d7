#!lua flags=no-writes
-- Reads the answers that are remembered for an aggregate.
-- KEYS     answers, order
-- Returns  {how long they are kept yet (ms), flat list of name and answer, flat list of name and when it was put (ms)}
return {redis.call('PTTL', KEYS[1]), redis.call('HGETALL', KEYS[1]), redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')}
