#!lua flags=allow-oom
-- begin_call: a plain call that waited comes back as a message. It begins once: a second copy of the message is refused,
-- unless the broker itself delivers again what a worker did not acknowledge.
-- Request: id, redelivered. Reply: {begin}
--@include once
--@include audit
if once_reply then return once_reply end
local mine = redis.call('HDEL', K.waiting_calls, request.id) == 1
redis.call('ZREM', K.waiting_due, request.id)
redis.call('HDEL', K.waiting_tries, request.id)
if mine then audit('call.released', {id = request.id}) end
return answer({begin = mine or request.redelivered == true})
