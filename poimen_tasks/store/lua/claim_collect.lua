#!lua flags=allow-oom
-- claim_collect: of the copies of the message behind a batch that is a step of a canvas one goes on, however many are taken
-- at the same time. A time beside the record: no change of state, so nothing is audited.
-- Request: b batch, patience (seconds after which one that has not gone on has died, and another takes its place).
-- Reply: {taken} (true: another one is at it, or has gone on)
--@include once
if once_reply then return once_reply end
local kept = redis.call('HMGET', K.record(request.b), 'parts', 'going', 'collected')
local going = tonumber(kept[2])
if not kept[1] then return answer({taken = false}) end
if kept[3] then return answer({taken = true}) end
-- Of a clock that went back nobody knows how long it is.
if going and now >= going and now - going < request.patience then return answer({taken = true}) end
redis.call('HSET', K.record(request.b), 'going', now)
return answer({taken = false})
