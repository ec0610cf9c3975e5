#!lua flags=allow-oom
-- resume_scope: the scope is paused no more, and what it held back is released, unless another scope covers it. The first
-- portion comes with the reply; while `left` the caller goes on with `release_held`, or the keeper does.
-- Request: scope, epoch (nil: whichever it is), id (request id, '' for none), reason, actor, rate (nil: all at once),
--   keep (seconds the state is kept from now on)
-- Reply: {epoch, at, again, left, released, tickets, calls}
--@include once
--@include releasing
if once_reply then return once_reply end
--@sound
local key = K.pause_state(request.scope)
local flag = redis.call('HGET', K.pauses, request.scope)
if not flag then
  local last = redis.call('HMGET', key, 'resume_request', 'epoch', 'resumed_at')
  if request.id ~= '' and last[1] == request.id then
    return answer({epoch = tonumber(last[2]), at = tonumber(last[3]), again = true, left = false, released = 0, tickets = {}, calls = {}})
  end
  return refuse('NOT_PAUSED', request.scope)
end
local epoch = read_flag(flag)
if request.epoch and request.epoch ~= epoch then return refuse('STALE_EPOCH', request.scope) end

redis.call('HDEL', K.pauses, request.scope)
redis.call('HINCRBY', K.pause_meta, 'resumes', 1)
redis.call('HSET', key, 'state', 'resumed', 'resumed_at', now, 'resume_reason', request.reason, 'resume_actor', request.actor,
  'resume_request', request.id, 'rate', request.rate or '')
redis.call('XADD', K.pause_signals(request.scope), 'MAXLEN', 64, '*', 's', 'resumed', 'e', epoch)
local keep = math.max(1, math.floor(request.keep))
redis.call('EXPIRE', key, keep)
redis.call('EXPIRE', K.pause_signals(request.scope), keep)
redis.call('ZADD', K.pause_index, now + keep, request.scope)
redis.call('ZREM', K.pause_due, request.scope)
redis.call('ZREM', K.keeping, request.scope)
if request.rate then
  redis.call('HSET', K.ramps, request.scope, string.format('%.17g|%.17g|1|%.17g', request.rate, now, now))
  redis.call('EXPIRE', K.ramps, RAMP_END + 1)
end
audit('scope.resumed', {
  scope = request.scope, epoch = epoch, a = request.actor, reason = request.reason, rate = request.rate or nil,
  held = redis.call('SCARD', K.held(request.scope)),
})
local reply = release_some(request.scope)
reply.epoch, reply.at = epoch, now
return answer(reply)
