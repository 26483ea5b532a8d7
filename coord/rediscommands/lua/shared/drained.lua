-- How many pending entries of one Redis consumer group are looked at for records that are gone.
local PENDING_LOOKED_AT = 1000

-- What keeps a shard from being drained, as flat triples (kind, Redis consumer group, detail); empty is the proof.
-- A shard that does not exist is drained; one with entries and no Redis consumer group was read by nobody.
local function blockers_of(shard)
  local blockers = {}
  local function add(kind, group, detail)
    blockers[#blockers + 1] = kind
    blockers[#blockers + 1] = group
    blockers[#blockers + 1] = detail
  end
  if redis.call('EXISTS', shard) == 0 then
    return blockers
  end
  local groups = redis.call('XINFO', 'GROUPS', shard)
  if #groups == 0 and redis.call('XLEN', shard) > 0 then
    add('nobody', '', redis.call('XLEN', shard))
  end
  for _, group in ipairs(groups) do
    local about = {}
    for place = 1, #group, 2 do
      about[group[place]] = group[place + 1]
    end
    local name, pending, delivered = about['name'], about['pending'], about['last-delivered-id']
    if not name or not pending or not delivered then
      error('XINFO GROUPS tells no name, pending or last-delivered-id of a group of ' .. shard)
    end
    if pending > 0 then
      local gone = 0
      for _, entry in ipairs(redis.call('XPENDING', shard, name, '-', '+', PENDING_LOOKED_AT)) do
        if #redis.call('XRANGE', shard, entry[1], entry[1]) == 0 then
          gone = gone + 1
        end
      end
      if pending > gone then
        add('pending', name, pending - gone)
      end
      if gone > 0 then
        add('gone', name, gone)
      end
    end
    if #redis.call('XRANGE', shard, '(' .. delivered, '+', 'COUNT', 1) > 0 then
      add('unread', name, delivered)
    end
  end
  return blockers
end
