#!lua flags=allow-oom
-- touch_producer: the producer of an unsealed batch is alive. Request: b batch, producer seconds. Reply: {}
--@include prelude
if redis.call('EXISTS', K.record(request.b)) == 0 then return refuse('NOT_FOUND', request.b) end
redis.call('HSET', K.record(request.b), 'producer', now + request.producer)
return cmsgpack.pack({ok = true})
