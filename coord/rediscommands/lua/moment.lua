#!lua flags=no-writes
-- Tells the clock and the store's identity as seen by the node of a key.
-- KEYS     any key on that node
-- ARGV     1 identity source
-- Returns  {now, identity}
-- include: clock
-- include: identity
return {now_ms(), identity(ARGV[1])}
