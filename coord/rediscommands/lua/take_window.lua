#!lua
-- Counts one mutation of a principal in the present window, unless that is full.
-- KEYS     windows
-- ARGV     1 principal, 2 mutations allowed, 3 length of a window, ms
-- Returns  0 when it was counted, else how many ms are left of the window
-- include: clock
local windows, principal, length = KEYS[1], ARGV[1], tonumber(ARGV[3])
local now = now_ms()
local began = now - now % length
-- A name that no principal can have: control characters are refused by the configuration.
if redis.call('HGET', windows, '\0began') ~= whole(began) then
  redis.call('DEL', windows)
  redis.call('HSET', windows, '\0began', whole(began))
end
local left = began + length - now
if tonumber(redis.call('HGET', windows, principal) or 0) >= tonumber(ARGV[2]) then
  return left
end
redis.call('HINCRBY', windows, principal, 1)
redis.call('PEXPIRE', windows, whole(left))
return 0
