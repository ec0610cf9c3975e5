#!lua flags=allow-oom
-- ask_item: a running body asks whether it is to stop, and perhaps what it saved before. It changes nothing.
-- Request: those of include/asking.lua, want (true: the state too). Reply: {cancelled, revoked, stop, mine, state (false: none)}
--@include prelude
--@include asking
local told = tell_item()
if request.want then told.state = redis.call('HGET', K.checkpoints(request.b), request.position) end
return cmsgpack.pack(told)
