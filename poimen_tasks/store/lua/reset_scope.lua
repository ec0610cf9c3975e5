#!lua flags=allow-oom
-- reset_scope: forget that a scope was ever paused. One that is paused is refused: resume it first.
-- Request: scope, actor. Reply: {known}
--@include once
--@include pausing
if once_reply then return once_reply end
--@sound
if redis.call('HEXISTS', K.pauses, request.scope) == 1 then return refuse('PAUSED', request.scope) end
local known = redis.call('DEL', K.pause_state(request.scope)) == 1
redis.call('DEL', K.pause_signals(request.scope))
redis.call('ZREM', K.pause_index, request.scope)
redis.call('HDEL', K.ramps, request.scope)
if known then audit('scope.reset', {scope = request.scope, a = request.actor}) end
return answer({known = known})
