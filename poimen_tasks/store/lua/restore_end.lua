#!lua
-- restore_end: the last step of restoring a batch: it is known and claimable from here on. Items that were revoked while they
-- ran get their outcome; the callbacks of a batch that is over do not fire again, and its retention begins anew.
-- Request: snapshot, holder, b batch, fields {name, value, …} of the record, created, actor, reason.
-- Reply: {already, over, tickets, left (of a cancelled batch: how many items wait for their outcome)}
--@include once
--@include cancelling
--@include revoking
if once_reply then return once_reply end
local fenced = redis.call('HMGET', K.restored(request.snapshot), 'state', 'holder')
if fenced[1] ~= 'restoring' or fenced[2] ~= request.holder then return refuse('RESTORING', request.b) end
local known = redis.call('HMGET', K.record(request.b), 'parts', 'restored', 'restoring')
if known[1] and known[2] == request.snapshot then
  return answer({already = true, tickets = missing_tickets(load_record(request.b)), left = 0})
end
if known[1] or (known[3] and known[3] ~= request.snapshot) then return refuse('LIVE', request.b) end

redis.call('HDEL', K.record(request.b), 'restoring')
for at = 1, #request.fields, 1000 do
  redis.call('HSET', K.record(request.b), unpack(request.fields, at, math.min(at + 999, #request.fields)))
end
redis.call('HSET', K.record(request.b), 'restored', request.snapshot)
local record = load_record(request.b)
for _, key in ipairs(BATCH_KEYS) do redis.call('PERSIST', key(request.b)) end
for part = 0, #record.parts - 1 do
  redis.call('PERSIST', K.fresh(request.b, part))
  redis.call('PERSIST', K.back(request.b, part))
end
if not record.parent then
  redis.call('ZADD', K.batches, request.created, request.b)
  redis.call('ZADD', K.workflow(record.workflow), request.created, request.b)
end
if record.over == 0 then list_open(record) end
audit_batch('batch.restored', record, {
  a = request.actor, reason = request.reason, snapshot = request.snapshot, ordinal = record.ordinal, round = record.round,
  total = record.total, ok = record.ok, failed = record.failed, cancelled = record.cancelled, skipped = record.skipped,
  pending = record.pending, delayed = record.delayed,
})

if record.over == 1 then
  if record.parent then expire_batch(request.b, math.max(1, math.floor(record.retention)))
  elseif record.callbacks == 0 then begin_retention(record) end
  return answer({over = true, tickets = {}, left = 0})
end
set_due(record)
local marks = read_marks(record)
write_marks(record, {})
for name, mark in pairs(marks) do
  local position = tonumber(name)
  if not has_outcome(record.batch, position) then settle_revoked(record, {{position, mark.p}}, mark.r, mark.a) end
end
drain_cancelled(record)
local tickets = end_or_go_on(record)
local left = record.cancel == 1 and record.pending + record.delayed + record.waiting or 0
return answer({over = record.over == 1, tickets = tickets, left = left})
