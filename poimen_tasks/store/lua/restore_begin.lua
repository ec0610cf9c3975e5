#!lua
-- restore_begin: somebody wants to restore a snapshot. Refused when it was restored here before, when somebody else is at
-- it, and when a batch of it is there already. Until all of it is restored its workflow is not taken anew: that would be a
-- part of it, in the place of the whole.
-- Request: snapshot, workflow, holder (a random id), hold seconds, batches (at most 500), check (true: only look).
-- Reply: {ok}
--@include once
if once_reply then return once_reply end
local LIFE = 86400
local known = redis.call('HMGET', K.restored(request.snapshot), 'state', 'holder', 'until')
if known[1] == 'restored' then return refuse('RESTORED', request.workflow) end
if known[2] and known[2] ~= request.holder and tonumber(known[3]) > now then return refuse('RESTORING', request.workflow) end
for _, batch in ipairs(request.batches) do
  local record = redis.call('HMGET', K.record(batch), 'parts', 'restored', 'restoring')
  if record[1] and record[2] ~= request.snapshot then return refuse('LIVE', batch) end
  if record[3] and record[3] ~= request.snapshot then return refuse('LIVE', batch) end
end
if not request.check then
  if not layout then redis.call('SET', K.layout, LAYOUT) end
  redis.call('HSET', K.restored(request.snapshot), 'state', 'restoring', 'workflow', request.workflow, 'holder', request.holder,
    'until', now + request.hold)
  redis.call('EXPIRE', K.restored(request.snapshot), LIFE)
  redis.call('ZREMRANGEBYSCORE', K.restoring, '-inf', now)
  redis.call('ZADD', K.restoring, now + LIFE, request.workflow)
end
return answer({ok = true})
