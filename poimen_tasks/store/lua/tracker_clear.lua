#!lua flags=allow-oom
-- tracker_clear: a tracker is forgotten with all its tasks; the server frees them aside, however many there are.
-- Request: tracker, actor, reason, workflow (nil: none). Reply: {removed (how many tasks), known}
--@include once
--@include audit
if once_reply then return once_reply end
--@sound
local count = redis.call('HLEN', K.tracker(request.tracker))
local known = redis.call('EXISTS', K.tracker_meta(request.tracker)) == 1 or count > 0
redis.call('UNLINK', K.tracker(request.tracker))
redis.call('UNLINK', K.tracker_order(request.tracker))
redis.call('UNLINK', K.tracker_states(request.tracker))
redis.call('UNLINK', K.tracker_meta(request.tracker))
redis.call('ZREM', K.trackers, request.tracker)
if known then
  audit('tracker.cleared', {tracker = request.tracker, n = count, w = request.workflow, a = request.actor,
    reason = request.reason})
end
return answer({removed = count, known = known})
