-- Plain calls under a pause: those that are parked, and those that run.
-- A parked call is a record {id, activity, queue, workflow, batch, when it was parked, ids of groups, message} under its
-- key: its message id, or `id#n` where another message of that id was parked already. It stays until it begins again.
-- A running call is `until TAB since TAB activity TAB queue TAB workflow TAB batch` under `id TAB worker TAB pid`.
--@include ramp
-- `paused_tries` has, of a released call, how often it was due, TAB, its queue.
local MOST_CALL_BYTES, REMEMBERED, RAMP_WAIT, PATIENT_TRIES = 1048576, 86400, 0.5, 6
local released_bytes = 0

-- The scopes that can cover a plain call; a call of no workflow or batch has empty ones, which nothing can pause.
local function call_scopes(activity, queue, workflow, batch)
  return {'*', 'a:' .. activity, 'q:' .. queue, 'w:' .. workflow, 'b:' .. batch}
end

-- Note a parked call with the scopes that cover it: it comes back with the resume of the last of them.
local function hold_call(key, covers)
  for _, cover in ipairs(covers) do redis.call('SADD', K.held(cover[1]), 'c\t' .. key) end
  redis.call('ZREM', K.paused_due, key)
  redis.call('HDEL', K.paused_tries, key)
end

local function forget_paused_call(key)
  redis.call('HDEL', K.paused_calls, key)
  redis.call('ZREM', K.paused_due, key)
  redis.call('HDEL', K.paused_tries, key)
  redis.call('ZREM', K.paused_keep, key)
  redis.call('SREM', K.paused_revoked, key)
end

-- Whether one more call may start under the ramps of its scopes; then it has its place among what starts.
local function may_start(scopes)
  if not is_anything_ramped() then return true end
  for _, scope in ipairs(scopes) do
    local ramp = read_ramp(scope)
    if ramp and ramp.level < 1 then return false end
  end
  take_room(scopes, 1)
  return true
end

-- A parked call whose scope was resumed: publish it, unless another scope covers it still. Adds {key, message} to `calls`;
-- when they hold a megabyte already, or a ramp has no room for it, the keeper publishes it a moment later. With `waits`
-- its queue has messages, so the one that was published is among them, most likely: another look, and another, first.
local function release_paused_call(key, calls, waits)
  local stored = redis.call('HGET', K.paused_calls, key)
  if not stored then
    redis.call('ZREM', K.paused_due, key)
    return
  end
  local parked = cmsgpack.unpack(stored)
  local scopes = call_scopes(parked[2], parked[3], parked[4], parked[5])
  local covers = covering(scopes)
  if #covers > 0 then
    hold_call(key, covers)
    return
  end
  local tries = tonumber(string.match(redis.call('HGET', K.paused_tries, key) or '', '^%d+')) or 0
  if tries == 0 and not may_start(scopes) then
    redis.call('ZADD', K.paused_due, now + RAMP_WAIT, key)
    return
  end
  released_bytes = released_bytes + #stored
  if released_bytes > MOST_CALL_BYTES and #calls > 0 then
    redis.call('ZADD', K.paused_due, now, key)
    return
  end
  redis.call('HSET', K.paused_tries, key, string.format('%d\t', tries + 1) .. parked[3])
  redis.call('ZADD', K.paused_due, now + (tonumber(request.overdue) or 2) * math.min(2 ^ tries, 256), key)
  if waits and tries > 0 and tries < PATIENT_TRIES then return end
  table.insert(calls, {key, parked[8]})
end

local function register_call(field, lease, activity, queue, workflow, batch)
  redis.call('HSET', K.running_calls, field,
    string.format('%.3f\t%.3f\t', now + lease, now) .. table.concat({activity, queue, workflow, batch}, '\t'))
end

-- The plain calls that run in a scope: a list of {id, activity}. Those whose lease is over are dropped, unless an outage
-- holds all reaping.
local function running_calls_in(scope)
  local found, all = {}, redis.call('HGETALL', K.running_calls)
  if #all == 0 then return found end
  local held = (tonumber(redis.call('HGET', K.clock, 'held')) or 0) > now
  for at = 1, #all, 2 do
    local till, activity, queue, workflow, batch =
      string.match(all[at + 1], '^([^\t]*)\t[^\t]*\t([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)$')
    if (tonumber(till) or 0) <= now and not held then
      redis.call('HDEL', K.running_calls, all[at])
    elseif activity then
      for _, covers in ipairs(call_scopes(activity, queue, workflow, batch)) do
        if covers == scope then table.insert(found, {string.match(all[at], '^[^\t]*'), activity}) end
      end
    end
  end
  return found
end
