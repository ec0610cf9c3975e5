#!lua flags=allow-oom
-- note_snapshot: a snapshot is on disk. While its workflow is paused the pause remembers it.
-- Request: snapshot, workflow, host, batches and items (how many), bytes, taken, actor, reason, stage, error.
-- Reply: {paused}
--@include once
--@include audit
if once_reply then return once_reply end
local scope = 'w:' .. request.workflow
local paused = redis.call('HEXISTS', K.pauses, scope) == 1
if paused then
  redis.call('HSET', K.pause_state(scope), 'snapshot', request.snapshot, 'snapshot_at', request.taken, 'snapshot_host', request.host)
end
audit('snapshot.created', {
  w = request.workflow, s = request.stage, a = request.actor, reason = request.reason, snapshot = request.snapshot,
  host = request.host, batches = request.batches, items = request.items, bytes = request.bytes, error = request.error,
})
return answer({paused = paused})
