-- A field of a log entry, or nil.
local function field(entry, name)
  local pairs_of_entry = entry[2]
  for place = 1, #pairs_of_entry, 2 do
    if pairs_of_entry[place] == name then
      return pairs_of_entry[place + 1]
    end
  end
end

-- A field of the log entry with this id, or nil.
local function field_at(events, id, name)
  local found = redis.call('XRANGE', events, id, id)
  return found[1] and field(found[1], name)
end

-- Whether the aggregate is as the writer read it. `seen`: exists ('1' or '0'), revision, commitId, head, chain. Gives also
-- the revision that is stored ('0': none), and why the log contradicts the head that both agree on, or nil.
local function as_seen(metadata, events, seen)
  local stored = redis.call('HMGET', metadata, 'revision', 'commitId', 'head', 'chain')
  local last, highest = log_end(events)
  local last_id = last and last[1] or '0-0'
  local revision = stored[1] or string.match(last_id, '^%d+')
  if seen[1] == '1' then
    for place = 1, 4 do
      if stored[place] ~= seen[place + 1] then
        return false, revision
      end
    end
  elseif redis.call('EXISTS', metadata) == 1 or last_id ~= seen[4] or (last and field(last, 'chain') ~= seen[5]) then
    return false, revision
  end
  if last_id ~= seen[4] or highest ~= seen[4] then
    return true, revision, 'the log ends at ' .. last_id .. ' (highest ever ' .. highest .. '), not at ' .. seen[4]
  end
  return true, revision
end
