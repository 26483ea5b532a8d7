#!lua flags=no-writes
-- Tells which commands the user of this connection may not run. Runs none of them.
-- KEYS     none
-- ARGV     four words a command, '' for each that it does not need
-- Returns  for each command 1 when it may be run, 0 when not, -1 when the server does not know it; nothing at all from a server
--          that cannot tell
if not redis.acl_check_cmd then
  return {}
end
local answers = {}
for at = 1, #ARGV, 4 do
  local one, two, three, four = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local known, may
  if four ~= '' then
    known, may = pcall(redis.acl_check_cmd, one, two, three, four)
  elseif three ~= '' then
    known, may = pcall(redis.acl_check_cmd, one, two, three)
  elseif two ~= '' then
    known, may = pcall(redis.acl_check_cmd, one, two)
  else
    known, may = pcall(redis.acl_check_cmd, one)
  end
  answers[#answers + 1] = known and (may and 1 or 0) or -1
end
return answers
