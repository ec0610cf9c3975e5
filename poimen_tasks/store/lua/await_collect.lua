#!lua flags=allow-oom
-- await_collect: whether the message behind a batch that is a step of a canvas is to be published, or was and may be lost.
-- A time and a count beside the record: no change of state, so nothing is audited.
-- Request: b batch, sent (true: it was published just now), patience (seconds until it may be lost, doubled by each
--   publication), longest (the most seconds that it becomes).
-- Reply: {state, again (due: it was published before)}: `over` (the canvas has gone on, or the batch is not kept), `due`,
--   or `sent`: not to be published yet
--@include prelude
local kept = redis.call('HMGET', K.record(request.b), 'parts', 'collected', 'sent', 'sends')
local sent, sends = tonumber(kept[3]), tonumber(kept[4]) or 0
if not kept[1] or kept[2] then return cmsgpack.pack({state = 'over'}) end
if request.sent then
  redis.call('HSET', K.record(request.b), 'sent', now, 'sends', sends + 1)
  return cmsgpack.pack({state = 'sent'})
end
local waits = sent and math.min(request.longest, request.patience * 2 ^ math.min(sends - 1, 30)) or 0
-- Of a clock that went back nobody knows how long it is.
if sent and now - sent < waits and now >= sent then return cmsgpack.pack({state = 'sent'}) end
return cmsgpack.pack({state = 'due', again = sends > 0})
