#!lua flags=allow-oom
-- drop_call: a parked call came back, and its worker discarded it: it was revoked, or had expired. It is not published again.
-- Request: key, why. Reply: {dropped}
--@include once
--@include paused_calls
if once_reply then return once_reply end
local stored = redis.call('HGET', K.paused_calls, request.key)
if not stored then return answer({dropped = false}) end
local parked = cmsgpack.unpack(stored)
forget_paused_call(request.key)
redis.call('HDEL', K.waiting_calls, parked[1])
audit('call.dropped', {id = parked[1], activity = parked[2], why = request.why})
return answer({dropped = true})
