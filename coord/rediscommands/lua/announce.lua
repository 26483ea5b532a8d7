#!lua
-- Notes which level of events a live instance reads, and gives the lowest that any live one does.
-- KEYS     loop
-- ARGV     1 instance, 2 the level that it reads, 3 for how many ms an instance counts as live
-- Returns  the lowest level
-- include: clock
local loop, now = KEYS[1], now_ms()
local PREFIX = 'reads:'
local lowest = tonumber(ARGV[2])
local stored = redis.call('HGETALL', loop)
local gone = {}
for at = 1, #stored, 2 do
  local name = stored[at]
  if string.sub(name, 1, #PREFIX) == PREFIX and name ~= PREFIX .. ARGV[1] then
    local level, seen = string.match(stored[at + 1], '^(%d+) (%d+)$')
    -- The distance, not the difference: a clock that went back must not keep an instance for ever.
    if seen and math.abs(now - tonumber(seen)) <= tonumber(ARGV[3]) then
      lowest = math.min(lowest, tonumber(level))
    else
      gone[#gone + 1] = name
    end
  end
end
redis.call('HSET', loop, PREFIX .. ARGV[1], ARGV[2] .. ' ' .. whole(now))
for _, name in ipairs(gone) do
  redis.call('HDEL', loop, name)
end
return lowest
