#!lua flags=allow-oom
-- park_call: a plain call that cannot simply start: a pause or the ramp of a resume covers it, or it was parked and comes back, or waited for a
-- result and comes back, or the broker delivers it again. It is parked, or begins and is registered, or is refused as a copy.
-- Request: id, field (see start_call), lease, activity, queue, workflow, batch, groups (ids), keep (seconds until the
--   results of its groups are refreshed first; 0: never), redelivered, returned (the key it was parked under, or nil),
--   waited (true: it comes back from waiting for a result); message (true: ARGV[5] is its message)
-- Reply: {how, scope}; how is `begin`, `parked`, `refused`, `revoked` (while it was parked: it does not begin), or
--   `message`: nothing was changed, ask again with the message
--@include once
--@include paused_calls
if once_reply then return once_reply end
local id = request.id
local key = request.returned or id
local stored = redis.call('HEXISTS', K.paused_calls, key) == 1
-- What has the id of a parked call but does not come back from there is a copy only when the broker says so.
local mine = stored and (request.returned ~= nil or request.redelivered or request.waited)
local waits = redis.call('HEXISTS', K.waiting_calls, id) == 1

local function is_copy()
  if request.returned then return not stored and not request.redelivered end
  if request.waited then return not (waits or mine or request.redelivered) end
  if not request.redelivered or mine then return false end
  return (tonumber(redis.call('ZSCORE', K.resumed_calls, id)) or 0) > now
end

if is_copy() then
  audit('call.refused', {id = id, activity = request.activity})
  return answer({how = 'refused'})
end
local scopes = call_scopes(request.activity, request.queue, request.workflow, request.batch)
local covers = covering(scopes)
-- What comes back had its place in a ramp when it was published.
local ramped = #covers == 0 and not mine and not (request.waited or request.redelivered) and not may_start(scopes)
if #covers > 0 or ramped then
  local scope = ramped and 'ramp' or covers[1][1]
  if not mine and not request.message then return answer({how = 'message', scope = scope}) end
  if stored and not mine then
    key = id .. '#' .. string.format('%d', redis.call('HINCRBY', K.pause_meta, 'calls', 1))
  end
  if not mine then
    redis.call('HSET', K.paused_calls, key, cmsgpack.pack({
      id, request.activity, request.queue, request.workflow, request.batch, now, request.groups, ARGV[5],
    }))
    if request.keep > 0 and #request.groups > 0 then redis.call('ZADD', K.paused_keep, now + request.keep, key) end
  end
  -- Released from its wait it is held here now: the cache's keeper must not publish it meanwhile.
  redis.call('ZREM', K.waiting_due, id)
  redis.call('HDEL', K.waiting_tries, id)
  hold_call(key, covers)
  if ramped then redis.call('ZADD', K.paused_due, now + RAMP_WAIT, key) end
  audit('call.paused', {
    id = id, activity = request.activity, queue = request.queue, scope = scope,
    w = request.workflow ~= '' and request.workflow or nil, again = mine or nil,
  })
  return answer({how = 'parked', scope = scope})
end

if mine and redis.call('SISMEMBER', K.paused_revoked, key) == 1 then
  forget_paused_call(key)
  redis.call('HDEL', K.waiting_calls, id)
  redis.call('ZADD', K.resumed_calls, now + REMEMBERED, id)
  audit('call.dropped', {id = id, activity = request.activity, why = 'revoked'})
  return answer({how = 'revoked'})
end
if mine then
  forget_paused_call(key)
  redis.call('ZADD', K.resumed_calls, now + REMEMBERED, id)
  audit('call.resumed', {id = id, activity = request.activity})
end
if request.waited and waits then
  redis.call('HDEL', K.waiting_calls, id)
  redis.call('ZREM', K.waiting_due, id)
  redis.call('HDEL', K.waiting_tries, id)
  audit('call.released', {id = id})
end
register_call(request.field, request.lease, request.activity, request.queue, request.workflow, request.batch)
return answer({how = 'begin'})
