#!lua flags=allow-oom
-- cancel_batch: no item starts any more; what is pending or delayed gets its outcome, at most 500 a call.
-- The first call raises the flag (claims stop at once) and seals the batch; call again while `left` > 0.
-- Request: b batch, reason, actor, terminate. Reply: {left, over, already, tickets}
--@include once
--@include cancelling
if once_reply then return once_reply end
--@sound
local record = load_record(request.b)
if not record then return refuse('NOT_FOUND', request.b) end
if record.over == 1 then return answer({left = 0, over = 1, already = true, tickets = {}}) end
local harder = request.terminate and redis.call('HSET', K.record(request.b), 'terminate', 1) == 1
if record.cancel == 0 then
  record.cancel = 1
  record.sealed = 1
  redis.call('HSET', K.record(request.b), 'cancel_reason', request.reason or '')
  audit_batch('batch.cancelling', record, {a = request.actor, reason = request.reason, terminate = request.terminate})
  for _, slot in ipairs(redis.call('HKEYS', K.slots(request.b))) do
    local held = read_slot(request.b, slot)
    if held.state == 'T' then free_slot(record, slot, held) end
  end
elseif harder then
  audit_batch('batch.cancelling', record, {a = request.actor, reason = request.reason, terminate = true})
end

local drained = drain_cancelled(record)
local tickets = {}
if is_complete(record) then
  if drained == 0 then
    record.ordinal = record.ordinal + 1
    redis.call('XADD', K.outcomes(request.b), string.format('%d-0', record.ordinal), 'b', '', 'o', '1')
  end
  tickets = end_batch(record)
else
  save_record(record)
end
return answer({left = record.pending + record.delayed + record.waiting, over = record.over, tickets = tickets})
