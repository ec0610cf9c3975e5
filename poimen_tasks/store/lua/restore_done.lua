#!lua
-- restore_done: all of a snapshot is restored; it is remembered, so that it is not restored here again. A workflow that is
-- paused is as the snapshot has it: no other one is taken for that pause.
-- Request: snapshot, taken (when), holder, workflow, batches and items (how many), actor, reason. Reply: {already}
--@include once
--@include audit
if once_reply then return once_reply end
local known = redis.call('HMGET', K.restored(request.snapshot), 'state', 'holder')
if known[1] == 'restored' then return answer({already = true}) end
if known[1] ~= 'restoring' or known[2] ~= request.holder then return refuse('RESTORING', request.workflow) end
redis.call('HSET', K.restored(request.snapshot), 'state', 'restored', 'at', now)
redis.call('EXPIRE', K.restored(request.snapshot), 365 * 86400)
redis.call('ZREM', K.restoring, request.workflow)
local flag = redis.call('HGET', K.pauses, 'w:' .. request.workflow)
if flag then
  redis.call('HSET', K.pause_state('w:' .. request.workflow), 'snapshot', request.snapshot, 'snapshot_at', request.taken,
    'snapshot_epoch', string.match(flag, '^%d+'))
end
audit('snapshot.restored', {
  w = request.workflow, a = request.actor, reason = request.reason, snapshot = request.snapshot, batches = request.batches,
  items = request.items,
})
return answer({already = false})
