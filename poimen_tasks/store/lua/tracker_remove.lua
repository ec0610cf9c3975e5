#!lua flags=allow-oom
-- tracker_remove: a task of a tracker is forgotten. The numbers of the tracker's changes go on.
-- Request: tracker, task (its id), expected (the version that it has; nil: any), actor, reason,
--   workflow (nil: none)
-- Reply: {removed, conflict (nothing was done: it has another version), version (of the task; 0: it is not there)}
--@include once
--@include audit
--@include tracker
if once_reply then return once_reply end
--@sound
local state, damaged = load_task(request.tracker, request.task)
if damaged then return refuse('DAMAGED', request.task) end
local version = state and state.v or 0
if request.expected and request.expected ~= version then
  return answer({removed = false, conflict = true, version = version})
end
if not state then return answer({removed = false, version = 0}) end
next_change(request.tracker)
redis.call('HDEL', K.tracker(request.tracker), request.task)
redis.call('ZREM', K.tracker_order(request.tracker), request.task)
redis.call('ZREM', K.tracker_states(request.tracker), request.task)
audit('tracker.removed', {
  tracker = request.tracker, task = request.task, version = version, from = state.s, w = request.workflow,
  a = request.actor, reason = request.reason,
})
return answer({removed = true, version = version})
