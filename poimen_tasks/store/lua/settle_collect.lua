#!lua flags=allow-oom
-- settle_collect: the canvas behind a batch that is a step of it has gone on, or was revoked: nobody publishes it again.
-- Request: b batch, how (`collected`, `revoked`). Reply: {first} (true: it was not known before)
--@include once
--@include record
if once_reply then return once_reply end
local record = load_record(request.b)
if not record or redis.call('HEXISTS', K.record(request.b), 'collected') == 1 then return answer({first = false}) end
redis.call('HSET', K.record(request.b), 'collected', now)
audit_batch('batch.collected', record, {how = request.how})
return answer({first = true})
