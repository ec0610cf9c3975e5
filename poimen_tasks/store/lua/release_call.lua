#!lua flags=allow-oom
-- release_call: a plain call was released, and its message seems lost: it is published once more.
-- Request: id. Reply: {calls = {id, message}…}
--@include once
--@include flight
if once_reply then return once_reply end
local due = tonumber(redis.call('ZSCORE', K.waiting_due, request.id))
if due and due <= now and not release_call(request.id) then
  redis.call('ZREM', K.waiting_due, request.id)
  redis.call('HDEL', K.waiting_tries, request.id)
end
return answer({calls = released_calls})
