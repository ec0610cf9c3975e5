#!lua flags=allow-oom
-- release_parked: a parked call was released, and its message seems lost: it is published once more.
-- Request: key. Reply: {calls = {key, message}…}
--@include once
--@include paused_calls
if once_reply then return once_reply end
local calls = {}
local due = tonumber(redis.call('ZSCORE', K.paused_due, request.key))
if due and due <= now then release_paused_call(request.key, calls) end
return answer({calls = calls})
