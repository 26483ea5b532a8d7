-- The server's clock, ms since 1970.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A whole number as text; Lua by itself turns large ones to exponents.
local function whole(number)
  return string.format('%d', number)
end
