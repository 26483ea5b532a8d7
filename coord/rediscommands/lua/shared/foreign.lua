-- What another coordinator stored under a key: the JSON of a hash, or a string; false for no such key, nil for anything else.
local function foreign_text(key)
  local kind = redis.call('TYPE', key)['ok']
  if kind == 'none' then
    return false
  elseif kind == 'string' then
    return redis.call('GET', key)
  elseif kind == 'hash' then
    return redis.call('HGET', key, 'aggregate') or nil
  end
end
