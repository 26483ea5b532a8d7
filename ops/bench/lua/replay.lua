-- wrk script: sends the requests of a file, one after another and round again.
-- Arguments after `--`  1 the file: each line a path, a tab and a JSON body
--                       2 a text that every answer must hold; left out, answers are counted and not looked at (which is faster)
-- Prints one line, `BENCH` and a JSON object of whole numbers; times in microseconds.

local requests, at = {}, 0
local threads = {}
wrong = 0  -- global, so that `done` can ask each thread for it

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  local headers = {["Content-Type"] = "application/json"}
  for line in io.lines(args[1]) do
    local path, body = line:match("^([^\t]*)\t(.*)$")
    requests[#requests + 1] = wrk.format("POST", path, headers, body)
  end
  local expected = args[2]
  if expected then
    function response(status, _, body)
      if status ~= 200 or not body:find(expected, 1, true) then
        wrong = wrong + 1
      end
    end
  end
end

function request()
  at = at % #requests + 1
  return requests[at]
end

function done(summary, latency, _)
  local unexpected = 0
  for _, thread in ipairs(threads) do
    unexpected = unexpected + thread:get("wrong")
  end
  local errors = summary.errors
  io.write(string.format(
    'BENCH {"requests":%d,"microseconds":%d,"errors":%d,"wrong":%d,"p50":%d,"p99":%d}\n',
    summary.requests, summary.duration, errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    unexpected, latency:percentile(50), latency:percentile(99)))
end
