#!lua flags=allow-oom
-- renew_calls: plain calls run still. Asked again it renews again. Request: fields (see start_call; at most 500), lease
-- Reply: how many of them were registered
--@include prelude
local renewed = 0
for at = 1, math.min(500, #request.fields) do
  local field = request.fields[at]
  local stored = redis.call('HGET', K.running_calls, field)
  if stored then
    renewed = renewed + 1
    redis.call('HSET', K.running_calls, field, (string.gsub(stored, '^[^\t]*', string.format('%.3f', now + request.lease))))
  end
end
return cmsgpack.pack(renewed)
