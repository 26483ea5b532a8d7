-- Which store this is: run id and replication id of the node that runs the script, or `constant` by the operator's word.
-- Plain finds: a pattern would cost more than the INFO itself, on each heartbeat.
local function identity(source)
  if source == 'constant' then
    return source
  end
  local info = redis.pcall('INFO', 'server', 'replication')
  if type(info) ~= 'string' then
    error('INFO is refused (' .. info.err .. '): set store.identity to constant if this store loses nothing')
  end
  local _, run = string.find(info, '\nrun_id:', 1, true)
  local _, replication = string.find(info, '\nmaster_replid:', 1, true)
  if not run or not replication then
    error('INFO tells no run_id and master_replid: set store.identity to constant if this store loses nothing')
  end
  return string.sub(info, run + 1, run + 40) .. '-' .. string.sub(info, replication + 1, replication + 40)
end
