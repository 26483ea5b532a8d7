#!lua flags=no-writes
-- Tells the store's identity as seen by the node of a key.
-- KEYS     any key on that node
-- ARGV     1 identity source
-- Returns  the identity
-- include: identity
return identity(ARGV[1])
