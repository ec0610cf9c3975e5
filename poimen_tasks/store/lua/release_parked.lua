#!lua flags=allow-oom
-- release_parked: a parked call was released and has not begun: it is published once more, unless its message waits.
-- Request: key, waits (true: its queue has messages). Reply: {calls = {key, message}…}
--@include once
--@include paused_calls
if once_reply then return once_reply end
local calls = {}
local due = tonumber(redis.call('ZSCORE', K.paused_due, request.key))
if due and due <= now then release_paused_call(request.key, calls, request.waits) end
return answer({calls = calls})
