#!lua
-- Writes log entries as they stand in another store, or nothing where the log ends elsewhere.
-- KEYS     events
-- ARGV     1 id of the log's last entry (`0-0`: none), 2 the chain value after it ('' for none); then the entries, four
--          arguments each: id, event, chain, id of the commit that wrote it ('' for an appended one)
-- Returns  {'written'}, also when just these are there already, or {'moved', id of the last entry} or {'corrupt', why}
-- include: types
-- include: log_end
-- include: log
local events = KEYS[1]
local why = wrong_type(KEYS, {'stream'})
if why then
  return {'corrupt', why}
end
local last, highest = log_end(events)
local last_id, chain = last and last[1] or '0-0', last and field(last, 'chain') or ''
if last_id == ARGV[#ARGV - 3] and chain == ARGV[#ARGV - 1] then
  return {'written'}
end
if last_id ~= ARGV[1] or chain ~= ARGV[2] or highest ~= last_id then
  return {'moved', highest}
end
for at = 3, #ARGV, 4 do
  if ARGV[at + 3] == '' then
    redis.call('XADD', events, ARGV[at], 'event', ARGV[at + 1], 'chain', ARGV[at + 2])
  else
    redis.call('XADD', events, ARGV[at], 'event', ARGV[at + 1], 'chain', ARGV[at + 2], 'commit', ARGV[at + 3])
  end
end
return {'written'}
