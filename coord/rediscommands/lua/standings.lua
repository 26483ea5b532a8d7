#!lua flags=no-writes
-- Tells where aggregates stand, so that whoever has read one knows whether it is as it was.
-- KEYS     metadata of each aggregate
-- ARGV     1 identity source
-- Returns  {now, identity, one answer an aggregate}: {revision, commitId} (nil: no such aggregate) or {'corrupt', why}
-- include: types
-- include: clock
-- include: identity
local answers = {}
for place, metadata in ipairs(KEYS) do
  local stored = redis.pcall('HMGET', metadata, 'revision', 'commitId')
  if stored.err then
    local why = wrong_type({metadata}, {'hash'})
    if not why then
      error(stored) -- nothing of the aggregate's: what is refused here is refused for all
    end
    answers[place] = {'corrupt', why}
  elseif (not stored[1] or not stored[2]) and redis.call('EXISTS', metadata) == 1 then
    answers[place] = {'corrupt', 'revision or commitId is missing'}
  else
    answers[place] = stored
  end
end
return {now_ms(), identity(ARGV[1]), answers}
