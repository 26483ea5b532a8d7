-- Why these keys cannot be used, or nil. Each must be missing, or of the type at its place in `wanted`.
local function wrong_type(keys, wanted)
  for place, key in ipairs(keys) do
    local found = redis.call('TYPE', key)['ok']
    if found ~= 'none' and found ~= wanted[place] then
      return key .. ' is of type ' .. found .. ', not ' .. wanted[place]
    end
  end
end
