#!lua
-- Asks to tick: granted to who ticked last, or to anybody once that is long ago; the tick is stamped when granted.
-- KEYS     loop
-- ARGV     1 instance, 2 after how many ms without a tick anybody may take over
-- Returns  {1 when granted, when anybody ticked before this (0: never), now}
-- include: clock
local loop = KEYS[1]
local now = now_ms()
local stored = redis.call('HMGET', loop, 'ticker', 'tickedAt')
local ticked = tonumber(stored[2] or 0)
-- The distance, not the difference: a clock that went back must not keep everybody from ticking.
if stored[1] ~= ARGV[1] and ticked > 0 and math.abs(now - ticked) < tonumber(ARGV[2]) then
  return {0, ticked, now}
end
redis.call('HSET', loop, 'ticker', ARGV[1], 'tickedAt', whole(now))
return {1, ticked, now}
