-- The log's last entry (false: none) and the highest id it ever had, `0-0` for a log that does not exist.
local function log_end(events)
  if redis.call('EXISTS', events) == 0 then
    return false, '0-0'
  end
  local info = redis.call('XINFO', 'STREAM', events)
  local last, highest = false, '0-0'
  for place = 1, #info, 2 do
    if info[place] == 'last-entry' then
      last = info[place + 1]
    elseif info[place] == 'last-generated-id' then
      highest = info[place + 1]
    end
  end
  return last, highest
end
