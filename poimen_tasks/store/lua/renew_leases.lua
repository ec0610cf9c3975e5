#!lua flags=allow-oom
-- renew_leases: the worker's parent speaks for its lanes. Request: lanes {batch, slot, generation}…, lease seconds.
-- Reply: a list beside the request: 'ok', 'cancel' (the batch is cancelled), 'kill' (and its running items too),
-- 'signal:<number>:<position>' (the item that it holds was revoked, with this signal for its process) or 'gone'.
--@include prelude
local answers = {}
for at, lane in ipairs(request.lanes) do
  local batch, slot, generation = lane[1], tostring(lane[2]), lane[3]
  local value = redis.call('HGET', K.slots(batch), slot)
  local state, held, token = string.match(value or '', '^(%a)|(%d+)|([^|]*)|')
  if state == 'L' and tonumber(held) == generation then
    redis.call('ZADD', K.leases, now + request.lease, batch .. '\t' .. slot .. '\t' .. string.format('%d', generation))
    local flags = redis.call('HMGET', K.record(batch), 'cancel', 'terminate', 'kill:' .. token)
    local revoked = flags[3] and 'signal:' .. flags[3]
    answers[at] = flags[2] == '1' and 'kill' or revoked or (flags[1] == '1' and 'cancel' or 'ok')
  else
    answers[at] = 'gone'
  end
end
return cmsgpack.pack(answers)
