#!lua flags=no-writes
-- Reads an aggregate, its place in the log, the clock and the store's identity at one moment; for a reader who has seen it,
-- what the log went on with instead of the aggregate, if that is no more.
-- KEYS     metadata, events, leases, reports
-- ARGV     1 identity source (`auto` or `constant`), then for a reader who has seen it: 2 the id of the log's last entry then,
--          3 the chain value after it, 4 how many entries to give at most, 5 how many bytes they may have more than the aggregate
-- Returns  {'loaded', now, identity, fields of the hash (revision, commitId, head, chain, schemaVersion, layoutVersion,
--          aggregate; nil for each that is missing), 1 when the hash exists, the log's last entry or nil, the highest id
--          that the log ever had, without a hash: the entries that the last commit wrote in the last revision, the entries
--          since the reader's (then the aggregate is nil), or nil}
--          or {'corrupt', why}
-- include: types
-- include: clock
-- include: identity
-- include: log_end
-- include: log
local PAGE = 100
local metadata, events = KEYS[1], KEYS[2]
local why = wrong_type(KEYS, {'hash', 'stream', 'zset', 'hash'})
if why then
  return {'corrupt', why}
end

-- The entries after the one that the reader saw last, or false when the whole aggregate serves it better.
local function tail_of_log()
  local seen, limit = redis.call('XRANGE', events, ARGV[2], ARGV[2])[1], tonumber(ARGV[4])
  if not seen or field(seen, 'chain') ~= ARGV[3] then
    return false
  end
  local entries = redis.call('XRANGE', events, '(' .. ARGV[2], '+', 'COUNT', limit + 1)
  local room = redis.call('HSTRLEN', metadata, 'aggregate') + tonumber(ARGV[5])
  for _, entry in ipairs(entries) do
    room = room - #(field(entry, 'event') or '')
  end
  return #entries <= limit and room >= 0 and entries
end

local exists = redis.call('EXISTS', metadata)
local last, highest = log_end(events)
local tail = ARGV[2] ~= nil and exists == 1 and tail_of_log()
local fields = redis.call('HMGET', metadata, 'revision', 'commitId', 'head', 'chain', 'schemaVersion', 'layoutVersion',
  tail and 'no aggregate' or 'aggregate')
local committed = {}
if exists == 0 and last then
  local revision = string.match(last[1], '^%d+')
  local from = revision .. '-0'
  while from do
    local page = redis.call('XRANGE', events, from, revision, 'COUNT', PAGE)
    from = #page == PAGE and '(' .. page[PAGE][1] or nil
    for _, entry in ipairs(page) do
      if not field(entry, 'commit') then
        from = nil
        break
      end
      committed[#committed + 1] = entry
    end
  end
end
return {'loaded', now_ms(), identity(ARGV[1]), fields, exists, last, highest, committed, tail}
