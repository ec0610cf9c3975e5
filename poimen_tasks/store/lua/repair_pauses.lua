#!lua flags=allow-oom
-- repair_pauses: what is known about a scope is held against whether it is paused, and put right if wanted.
-- Request: scopes (at most 100), repair (false: only look), actor, keep (seconds a state is kept after a resume).
-- Reply: {found = {scope, what…}…}, where `what` is
--   unstated  it is paused, and nothing says who did it
--   unlisted  it is paused, and not in the list of states
--   unmarked  its state says that it is paused, and it is not
--   listed    it is in the list as paused, and it is not
--   due       it is to be resumed or kept, and is not paused
--   held      it holds something back, is not paused, and nobody releases that
--@include once
--@include pausing
--@include audit
if once_reply then return once_reply end

local function look(scope)
  local what, key = {}, K.pause_state(scope)
  local listed = redis.call('ZSCORE', K.pause_index, scope)
  if redis.call('HEXISTS', K.pauses, scope) == 1 then
    if redis.call('EXISTS', key) == 0 then table.insert(what, 'unstated') end
    if listed ~= 'inf' then table.insert(what, 'unlisted') end
    return what
  end
  if redis.call('HGET', key, 'state') == 'paused' then table.insert(what, 'unmarked') end
  if listed == 'inf' then table.insert(what, 'listed') end
  if redis.call('ZSCORE', K.pause_due, scope) or redis.call('ZSCORE', K.keeping, scope) then table.insert(what, 'due') end
  if redis.call('EXISTS', K.held(scope)) == 1 and not redis.call('ZSCORE', K.releasing, scope) then table.insert(what, 'held') end
  return what
end

local repairs = {}
function repairs.unstated(scope)
  redis.call('HSET', K.pause_state(scope), 'state', 'paused', 'epoch', (read_flag(redis.call('HGET', K.pauses, scope))) or 0,
    'paused_at', now, 'updated_at', now)
end
function repairs.unlisted(scope)
  redis.call('ZADD', K.pause_index, '+inf', scope)
  redis.call('PERSIST', K.pause_state(scope))
end
function repairs.unmarked(scope)
  redis.call('HSET', K.pause_state(scope), 'state', 'resumed', 'resumed_at', now, 'resume_actor', request.actor, 'resume_reason', 'repaired')
  redis.call('EXPIRE', K.pause_state(scope), request.keep)
  redis.call('ZADD', K.pause_index, now + request.keep, scope)
end
function repairs.listed(scope) redis.call('ZADD', K.pause_index, now + request.keep, scope) end
function repairs.due(scope)
  redis.call('ZREM', K.pause_due, scope)
  redis.call('ZREM', K.keeping, scope)
end
-- The keeper releases it with its next tick.
function repairs.held(scope) redis.call('ZADD', K.releasing, now, scope) end

local found = {}
for _, scope in ipairs(request.scopes) do
  local what = look(scope)
  if #what > 0 then
    if request.repair then
      for _, one in ipairs(what) do repairs[one](scope) end
    end
    table.insert(found, {scope, what})
  end
end
if request.repair and #found > 0 then audit('pauses.repaired', {scopes = found, a = request.actor}) end
return answer({found = found})
