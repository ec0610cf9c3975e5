#!lua flags=allow-oom
-- keep_ended: some more batches that ended before their scope was paused keep their keys. Request: scope. Reply: {left (call again)}
--@include once
--@include keeping
if once_reply then return once_reply end
keep_some(request.scope)
return answer({left = redis.call('ZSCORE', K.keeping, request.scope) ~= false})
