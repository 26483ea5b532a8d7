#!lua
-- Commits events together with the aggregate that they fold into, or writes nothing.
-- KEYS     metadata, events, leases, reports
-- ARGV     1 identity source, 2 identity of the decision, 3 '1' if the aggregate existed, 4 its revision, 5 its commit id,
--          6 id of the log's last entry (`0-0`: none), 7 the chain value after it, 8 id of this commit,
--          9 '1' to store the aggregate and '0' to delete it, 10 aggregate, 11 schema version, 12 layout version,
--          13 lease ttl in ms, 14 '1' if no lease may run, 15 highest deadline that there may be (''  any),
--          16 '1' to renew every lease; then six lists, each its length and its items: entries (id, event, chain), members
--          that must have lapsed, members whose deadline must be unchanged (member, deadline or '' for none), members to
--          remove, members to renew, reports (member, report)
-- Returns  {'committed', now} or {'already', now}: this commit took place earlier
--          or {'conflict', `head` | `identity` | `lease`, stored revision, identity, now} or {'corrupt', why}
-- include: types
-- include: rights
-- include: clock
-- include: iso
-- include: identity
-- include: log_end
-- include: log
-- include: leases
local metadata, events, leases, reports = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ENTRIES, LAPSED, UNCHANGED, REMOVED, RENEWED, REPORTS = 1, 2, 3, 4, 5, 6
local WIDTHS = {3, 1, 2, 1, 1, 2}

-- Where each list begins and ends in ARGV.
local function lists()
  local found, at = {}, 17
  for place, width in ipairs(WIDTHS) do
    local length = tonumber(ARGV[at] or 0)
    found[place] = {from = at + 1, to = at + length * width, width = width}
    at = at + 1 + length * width
  end
  if at ~= #ARGV + 1 then
    error('commit was called with ' .. #ARGV .. ' arguments where its lists end at ' .. (at - 1))
  end
  return found
end

-- Whether soft state is as the decision needs it.
local function leases_allow(list, now)
  for at = list[LAPSED].from, list[LAPSED].to do
    local deadline = redis.call('ZSCORE', leases, ARGV[at])
    if not deadline or tonumber(deadline) >= now then
      return false
    end
  end
  for at = list[UNCHANGED].from, list[UNCHANGED].to, 2 do
    local deadline = redis.call('ZSCORE', leases, ARGV[at])
    if (deadline and whole(tonumber(deadline)) or '') ~= ARGV[at + 1] then
      return false
    end
  end
  if ARGV[14] == '1' and leases_from(leases, whole(now), function(score) return score >= now end) > 0 then
    return false
  end
  local latest = tonumber(ARGV[15])
  return not latest or leases_from(leases, '(' .. ARGV[15], function(score) return score > latest end) == 0
end

-- Added first and removed last: while a slot moves to another node, a key that is gone cannot be made again on this one, so
-- none may vanish on the way. A member that is removed and renewed begins a new lease.
local function change_leases(list, now)
  local deadline = whole(now + tonumber(ARGV[13]))
  local removed, renewed, reported = {}, {}, {}
  for at = list[REMOVED].from, list[REMOVED].to do
    removed[ARGV[at]] = true
  end
  for at = list[RENEWED].from, list[RENEWED].to do
    local member = ARGV[at]
    renewed[member] = true
    if removed[member] then
      redis.call('ZADD', leases, deadline, member)
    else
      redis.call('ZADD', leases, 'GT', deadline, member)
    end
  end
  if ARGV[16] == '1' then
    for _, member in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
      if is_member(member) and not removed[member] then
        redis.call('ZADD', leases, 'GT', deadline, member)
      end
    end
  end
  for at = list[REPORTS].from, list[REPORTS].to, 2 do
    reported[ARGV[at]] = true
    redis.call('HSET', reports, ARGV[at], ARGV[at + 1])
  end
  for at = list[REMOVED].from, list[REMOVED].to do
    if not renewed[ARGV[at]] then
      redis.call('ZREM', leases, ARGV[at])
    end
    if not reported[ARGV[at]] then
      redis.call('HDEL', reports, ARGV[at])
    end
  end
end

local list = lists()
local why = wrong_type(KEYS, {'hash', 'stream', 'zset', 'hash'})
if why then
  return {'corrupt', why}
end
local refusal = denied({{'XADD', events}, {'HSET', metadata}, {'HSET', reports}, {'HDEL', reports}, {'ZADD', leases},
  {'ZREM', leases}, {'DEL', metadata}})
if refusal then
  return redis.error_reply(refusal)
end
local now, store = now_ms(), identity(ARGV[1])
local first, last = list[ENTRIES].from, list[ENTRIES].to - 2
local same, revision, contradiction = as_seen(metadata, events, {ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]})
if not same then
  if field_at(events, ARGV[first], 'commit') == ARGV[8] then
    return {'already', now}
  end
  return {'conflict', 'head', revision, store, now}
end
if contradiction then
  return {'corrupt', contradiction}
end
if store ~= ARGV[2] then
  return {'conflict', 'identity', revision, store, now}
end
if not leases_allow(list, now) then
  return {'conflict', 'lease', revision, store, now}
end

for at = first, last, 3 do
  redis.call('XADD', events, ARGV[at], 'event', ARGV[at + 1], 'chain', ARGV[at + 2], 'commit', ARGV[8])
end
if ARGV[9] == '0' then
  redis.call('DEL', metadata, leases, reports)
  return {'committed', now}
end
redis.call('HSET', metadata, 'aggregate', ARGV[10], 'revision', string.match(ARGV[last], '^%d+'), 'schemaVersion', ARGV[11],
  'layoutVersion', ARGV[12], 'updatedAt', iso(now), 'commitId', ARGV[8], 'head', ARGV[last], 'chain', ARGV[last + 2],
  'identity', store)
change_leases(list, now)
return {'committed', now}
