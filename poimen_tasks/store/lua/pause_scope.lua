#!lua flags=allow-oom
-- pause_scope: from now on no item of the scope is claimed, and no plain call of it begins. What runs is in the reply.
-- A request id that was seen gets the reply that it got, without effect. What is paused already gets the new reason,
-- grace, terminate and expiry under a new epoch, and keeps the time it was paused at.
-- Request: scope, id (request id, '' for none), reason, actor, grace (seconds, nil: running items may finish), terminate,
--   expires (seconds, nil: never), standing (a pause that stands already is left as it is)
-- Reply: {epoch, at, stop_at, expires_at, again (this request was answered before, or the pause stood), running (see
--   include/running.lua), calls}
--@include once
--@include running
--@include keeping
if once_reply then return once_reply end
--@sound
local MOST_REQUESTS = 16
local key = K.pause_state(request.scope)
local seen = request.id ~= '' and redis.call('HGET', key, 'r:' .. request.id)
if seen then
  local reply = cmsgpack.unpack(seen)
  reply.again = true
  return answer(reply)
end

local stands = request.standing and redis.call('HGET', K.pauses, request.scope)
if stands then
  local number, stop = read_flag(stands)
  return answer({
    epoch = number, at = tonumber(redis.call('HGET', key, 'paused_at')) or now, stop_at = stop, again = true,
    running = running_in(request.scope), calls = running_calls_in(request.scope),
  })
end

local running, calls = running_in(request.scope), running_calls_in(request.scope)
local epoch = redis.call('HINCRBY', K.pause_meta, 'epoch', 1)
redis.call('HINCRBY', K.pause_meta, 'pauses', 1)
local stop_at = request.grace and now + request.grace
local expires_at = request.expires and now + request.expires
local flag = string.format('%d|%s|%d', epoch, stop_at and string.format('%.6f', stop_at) or '-', request.terminate and 1 or 0)
local was_paused = redis.call('HSET', K.pauses, request.scope, flag) == 0
local reply = {
  epoch = epoch, at = now, stop_at = stop_at or nil, expires_at = expires_at or nil,
  running = running, calls = calls,
}
if not was_paused then
  redis.call('HSET', key, 'paused_at', now)
  redis.call('HDEL', key, 'resumed_at', 'resume_reason', 'resume_actor', 'resume_request', 'rate')
end
redis.call('HSET', key, 'state', 'paused', 'epoch', epoch, 'reason', request.reason, 'actor', request.actor,
  'request', request.id, 'updated_at', now, 'grace', request.grace or '', 'stop_at', stop_at or '',
  'terminate', request.terminate and 1 or 0, 'expires_at', expires_at or '')
if not was_paused then redis.call('HDEL', key, 'kept') end
redis.call('PERSIST', key)
keep_some(request.scope)
redis.call('ZADD', K.pause_index, '+inf', request.scope)
if expires_at then redis.call('ZADD', K.pause_due, expires_at, request.scope) else redis.call('ZREM', K.pause_due, request.scope) end
redis.call('HDEL', K.ramps, request.scope)
redis.call('XADD', K.pause_signals(request.scope), 'MAXLEN', 64, '*', 's', 'paused', 'e', epoch)
redis.call('PERSIST', K.pause_signals(request.scope))
local items = 0
for _, row in ipairs(reply.running) do
  for at = 1, #row[3], 2 do items = items + row[3][at + 1] - row[3][at] end
end
audit('scope.paused', {
  scope = request.scope, epoch = epoch, a = request.actor, reason = request.reason, grace = request.grace or nil,
  terminate = request.terminate or nil, expires = request.expires or nil, again = was_paused or nil,
  running = items, lanes = #reply.running, calls = #reply.calls,
})
if request.id ~= '' then
  local known = redis.call('HGET', key, 'requests')
  local requests = known and cmsgpack.unpack(known) or {}
  table.insert(requests, request.id)
  if #requests > MOST_REQUESTS then redis.call('HDEL', key, 'r:' .. table.remove(requests, 1)) end
  redis.call('HSET', key, 'requests', cmsgpack.pack(requests), 'r:' .. request.id, cmsgpack.pack(reply))
end
return answer(reply)
