-- Why the user who runs this script may not write all that it is about to write, or nil. An ACL would stop the script half-way,
-- and what was written before stayed. Each item is a command and its key, or a command, a sub-command and its key.
local function denied(items)
  if not redis.acl_check_cmd then
    return nil
  end
  for _, item in ipairs(items) do
    local may
    if item[3] then
      may = redis.acl_check_cmd(item[1], item[2], item[3])
    else
      may = redis.acl_check_cmd(item[1], item[2])
    end
    if not may then
      return 'NOPERM the user of this connection may not run ' .. table.concat(item, ' ')
    end
  end
  return nil
end
