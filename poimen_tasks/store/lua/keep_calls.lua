#!lua flags=allow-oom
-- keep_calls: the result backend forgets groups after a while; whose members are parked here are refreshed by the caller,
-- who comes again. Request: period (seconds until then), most (at most 500)
-- Reply: ids of messages and ids of groups, of the calls that were due: {{id, groups}…}
--@include once
--@include paused_calls
if once_reply then return once_reply end
local found = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.paused_keep, '-inf', now, 'LIMIT', 0, math.min(500, request.most))) do
  local stored = redis.call('HGET', K.paused_calls, key)
  if stored then
    local parked = cmsgpack.unpack(stored)
    table.insert(found, {parked[1], parked[7]})
    redis.call('ZADD', K.paused_keep, now + request.period, key)
  else
    redis.call('ZREM', K.paused_keep, key)
  end
end
return answer(found)
