#!lua flags=allow-oom
-- repair_tracker: hold some tasks of a tracker, and what its indexes say of them, against each other; put right what is
-- not as it should be. The states themselves count, the indexes follow; a state that cannot be read is removed.
-- Request: tracker, ids (at most 500), repair, actor
-- Reply: {damaged, unlisted, dead: how many of each; unindexed, behind: flags}
--   damaged    its state cannot be read           unlisted   an index lacks it, or has it elsewhere
--   dead       an index has it, and it is not there
--   unindexed  the list of all trackers lacks it  behind     its numbers would be given out once more
--@include once
--@include audit
--@include tracker
if once_reply then return once_reply end
if #request.ids > 500 then return refuse('TOO_MANY', #request.ids) end
local name = request.tracker
local found = {damaged = 0, unlisted = 0, dead = 0, unindexed = false, behind = false}
local most = {changes = 0, places = 0}

local function forget(id)
  redis.call('HDEL', K.tracker(name), id)
  redis.call('ZREM', K.tracker_order(name), id)
  redis.call('ZREM', K.tracker_states(name), id)
end

for _, id in ipairs(request.ids) do
  local stored = redis.call('HGET', K.tracker(name), id)
  local order = tonumber(redis.call('ZSCORE', K.tracker_order(name), id) or nil)
  local place = tonumber(redis.call('ZSCORE', K.tracker_states(name), id) or nil)
  if stored then
    local state = open_task(stored)
    if state then
      most.changes, most.places = math.max(most.changes, state.v), math.max(most.places, state.o)
      if order ~= state.o or place ~= state.k * PLACES + state.o then
        found.unlisted = found.unlisted + 1
        if request.repair then save_task(name, id, state) end
      end
    else
      found.damaged = found.damaged + 1
      if request.repair then forget(id) end
    end
  elseif order or place then
    found.dead = found.dead + 1
    if request.repair then forget(id) end
  end
end

for field, number in pairs(most) do
  if number > (tonumber(redis.call('HGET', K.tracker_meta(name), field) or nil) or 0) then
    found.behind = true
    if request.repair then redis.call('HSET', K.tracker_meta(name), field, number) end
  end
end
if not redis.call('ZSCORE', K.trackers, name) and redis.call('EXISTS', K.tracker(name)) == 1 then
  found.unindexed = true
  if request.repair then redis.call('ZADD', K.trackers, now, name) end
end
local wrong = found.damaged + found.unlisted + found.dead > 0 or found.unindexed or found.behind
if request.repair and wrong then
  audit('tracker.repaired', {
    tracker = name, a = request.actor, damaged = found.damaged, unlisted = found.unlisted, dead = found.dead,
    unindexed = found.unindexed, behind = found.behind,
  })
end
return answer(found)
