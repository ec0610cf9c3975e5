#!lua flags=allow-oom
-- scope_running: what runs in a scope at this instant. It changes nothing. Request: scope.
-- Reply: {epoch (nil: not paused), running (see include/running.lua), calls}
--@include prelude
--@include running
local flag = redis.call('HGET', K.pauses, request.scope)
return cmsgpack.pack({
  epoch = flag and (read_flag(flag)) or nil, running = running_in(request.scope), calls = running_calls_in(request.scope),
})
