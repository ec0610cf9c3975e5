#!lua flags=allow-oom
-- renew_leases: the worker's parent speaks for its lanes. Request: lanes {batch, slot, generation}…, lease seconds.
-- Reply: a list beside the request: 'ok', 'cancel' (the batch is cancelled), 'kill' (and its running items too),
-- 'signal:<number>:<position>' (the item that it holds was revoked, with this signal for its process),
-- 'stop' (it is paused, and its process is to be ended), 'early' (it was accepted, and its first step is still to come: there
-- is no lease yet, and it must not be forgotten) or 'gone'.
--@include prelude
--@include pausing
local known = {}
local function is_to_end(batch, token)
  local stored = is_anything_paused() and redis.call('HGET', K.running(batch), token)
  if not stored then return false end
  if known[batch] == nil then known[batch] = load_record(batch) or false end
  return known[batch] and select(2, is_stopping(known[batch], cmsgpack.unpack(stored).p))
end

local answers = {}
for at, lane in ipairs(request.lanes) do
  local batch, slot, generation = lane[1], tostring(lane[2]), lane[3]
  local value = redis.call('HGET', K.slots(batch), slot)
  local state, held, token = string.match(value or '', '^(%a)|(%d+)|([^|]*)|')
  if state == 'L' and tonumber(held) == generation then
    redis.call('ZADD', K.leases, now + request.lease, batch .. '\t' .. slot .. '\t' .. string.format('%d', generation))
    local flags = redis.call('HMGET', K.record(batch), 'cancel', 'terminate', 'kill:' .. token)
    local revoked = flags[3] and 'signal:' .. flags[3]
    local stop = not revoked and is_to_end(batch, token) and 'stop'
    answers[at] = flags[2] == '1' and 'kill' or revoked or stop or (flags[1] == '1' and 'cancel' or 'ok')
  else
    answers[at] = state == 'T' and tonumber(held) == generation and 'early' or 'gone'
  end
end
return cmsgpack.pack(answers)
