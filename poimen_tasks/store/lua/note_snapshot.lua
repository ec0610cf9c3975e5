#!lua flags=allow-oom
-- note_snapshot: a snapshot is on disk, or was not to be had. While its workflow is paused the pause remembers it.
-- Request: workflow, and snapshot, host, batches and items (how many), bytes, taken, actor, reason, stage, error;
--   or failed (why there is none).
-- Reply: {paused}
--@include once
--@include audit
if once_reply then return once_reply end
local scope = 'w:' .. request.workflow
local flag = redis.call('HGET', K.pauses, scope)
if request.failed then
  if flag then redis.call('HSET', K.pause_state(scope), 'snapshot_error', request.failed) end
  return answer({paused = flag and true or false})
end
if flag then
  redis.call('HSET', K.pause_state(scope), 'snapshot', request.snapshot, 'snapshot_at', request.taken, 'snapshot_host', request.host,
    'snapshot_epoch', string.match(flag, '^%d+'))
  redis.call('HDEL', K.pause_state(scope), 'snapshot_error')
end
audit('snapshot.created', {
  w = request.workflow, s = request.stage, a = request.actor, reason = request.reason, snapshot = request.snapshot,
  host = request.host, batches = request.batches, items = request.items, bytes = request.bytes, error = request.error,
})
return answer({paused = flag and true or false})
