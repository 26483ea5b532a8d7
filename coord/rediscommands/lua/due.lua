#!lua
-- Looks at the leases of groups: stamps each look, starts a grace where one is due, gives the lapsed ones. A group whose keys
-- cannot be used is told as such, and the others are looked at all the same.
-- KEYS     metadata and leases of each group in turn
-- ARGV     1 identity source, 2 lease ttl in ms, 3 '1' to start a grace in any case
-- Returns  {now, identity, one answer a group}: {flat list of member and deadline, grace until (0: none), number of leases,
--          deadline that comes first (0: none), last look (0: never), revision and commitId (nil: no such group)} or
--          {'corrupt', why}. A group that does not exist is not stamped.
-- include: types
-- include: clock
-- include: identity
-- include: leases
local now, store, ttl = now_ms(), identity(ARGV[1]), tonumber(ARGV[2])
local now_told = whole(now)

-- The first of the lowest entries that is a member's: at most two are not.
local function earliest_of(leases)
  local lowest = redis.call('ZRANGE', leases, 0, 2, 'WITHSCORES')
  for place = 1, #lowest, 2 do
    if is_member(lowest[place]) then
      return tonumber(lowest[place + 1])
    end
  end
  return 0
end

local function lapsed_of(leases)
  local lapsed, found = {}, redis.call('ZRANGE', leases, '-inf', '(' .. now_told, 'BYSCORE', 'WITHSCORES')
  for place = 1, #found, 2 do
    if is_member(found[place]) then
      lapsed[#lapsed + 1] = found[place]
      lapsed[#lapsed + 1] = tonumber(found[place + 1])
    end
  end
  return lapsed
end

local function look(metadata, leases)
  local stored, marks = redis.pcall('HMGET', metadata, 'revision', 'commitId'), redis.pcall('ZMSCORE', leases, LOOKED, GRACE)
  if stored.err or marks.err then
    local why = wrong_type({metadata, leases}, {'hash', 'zset'})
    if not why then
      error(stored.err and stored or marks) -- nothing of the group's: what is refused here is refused for all
    end
    return {'corrupt', why}
  end
  if not stored[1] or not stored[2] then
    if redis.call('EXISTS', metadata) == 1 then
      return {'corrupt', 'revision or commitId is missing'}
    end
    return {{}, 0, 0, 0, 0, false, false}
  end
  local looked, grace, lapsed = tonumber(marks[1] or 0), tonumber(marks[2] or 0), {}
  if ARGV[3] == '1' or looked == 0 or math.abs(now - looked) > ttl / 2 then
    grace = math.max(grace, now + ttl)
  end
  local earliest = earliest_of(leases)
  if grace <= now then
    grace = 0
    if earliest > 0 and earliest < now then
      lapsed = lapsed_of(leases)
    end
  end
  if marks[2] and tonumber(marks[2]) == grace then
    redis.call('ZADD', leases, now_told, LOOKED)
  else
    redis.call('ZADD', leases, now_told, LOOKED, whole(grace), GRACE)
  end
  return {lapsed, grace, redis.call('ZCARD', leases) - 2, earliest, looked, stored[1], stored[2]}
end

local answers = {}
for place = 1, #KEYS, 2 do
  answers[#answers + 1] = look(KEYS[place], KEYS[place + 1])
end
return {now, store, answers}
