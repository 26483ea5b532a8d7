#!lua
-- Appends log entries that raise no revision, or writes nothing. Of the hash only head and chain change.
-- KEYS     metadata, events
-- ARGV     1 '1' if the aggregate existed, 2 its revision, 3 its commit id, 4 id of the log's last entry, 5 the chain value
--          after it; then the entries, three arguments each: id, event, chain
-- Returns  {'appended'} or {'already'}: these entries were appended earlier, or {'moved'}: the head is another one,
--          or {'corrupt', why}
-- include: types
-- include: rights
-- include: log_end
-- include: log
local metadata, events = KEYS[1], KEYS[2]
local why = wrong_type(KEYS, {'hash', 'stream'})
if why then
  return {'corrupt', why}
end
local last = #ARGV - 2
local same, _, contradiction = as_seen(metadata, events, {ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]})
if not same then
  -- The chain value covers these entries and all before them, so nobody else's entry has it.
  return {field_at(events, ARGV[last], 'chain') == ARGV[last + 2] and 'already' or 'moved'}
end
if contradiction then
  return {'corrupt', contradiction}
end
local refusal = denied({{'XADD', events}, {'HSET', metadata}})
if refusal then
  return redis.error_reply(refusal)
end
for at = 6, last, 3 do
  redis.call('XADD', events, ARGV[at], 'event', ARGV[at + 1], 'chain', ARGV[at + 2])
end
if ARGV[1] == '1' then
  redis.call('HSET', metadata, 'head', ARGV[last], 'chain', ARGV[last + 2])
end
return {'appended'}
