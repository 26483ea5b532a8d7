#!lua flags=no-writes
-- Proves that every Redis consumer group of a shard has read and acknowledged all, or says what is in the way.
-- KEYS     shard
-- Returns  flat triples (`pending` | `gone` | `unread` | `nobody`, Redis consumer group, count or id); empty is the proof
-- include: drained
return blockers_of(KEYS[1])
