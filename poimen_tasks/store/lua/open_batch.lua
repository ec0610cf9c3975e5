#!lua
-- open_batch: the record, its first slice and perhaps its seal, in one step. An existing batch is only described.
-- Request: those of append.lua, and
--   b batch, workflow, stage, actor, metadata, limit (0: none), retention, seal, callbacks {kind, stored}…,
--   producer seconds, trace (packed headers; empty or absent: none), soft (audit entries that may wait for the sealer)
-- Reply: {now, existed, total, sealed, over, workflow, stage, parts, tickets}
--@include once
--@include append
if once_reply then return once_reply end
--@sound
local existing = load_record(request.b)
if existing then
  return answer({
    existed = true, total = existing.total, sealed = existing.sealed, over = existing.over, workflow = existing.workflow,
    stage = existing.stage, parts = redis.call('HGET', K.record(request.b), 'parts'), tickets = {},
    cancel = existing.cancel,
  })
end
if has_backlog(request.soft) then return refuse('BACKLOG', redis.call('XLEN', K.audit)) end
if count_parts() > MOST_PARTS then return refuse('PARTS', request.b) end
local duplicate = find_duplicate(request.b, request.ids)
if duplicate then return refuse('DUPLICATE', duplicate) end
if not layout then redis.call('SET', K.layout, LAYOUT) end
redis.call('HSET', K.record(request.b),
  'workflow', request.workflow, 'stage', request.stage, 'actor', request.actor, 'metadata', request.metadata,
  'parts', request.parts, 'limit', request.limit, 'retention', request.retention, 'created', now,
  'producer', now + request.producer)
if request.trace and request.trace ~= '' then redis.call('HSET', K.record(request.b), 'trace', request.trace) end
for _, callback in ipairs(request.callbacks or {}) do
  redis.call('HSET', K.record(request.b), 'cb:' .. callback[1], callback[2])
end
redis.call('ZADD', K.batches, now, request.b)
redis.call('ZADD', K.open, now, request.b)
redis.call('ZADD', K.workflow(request.workflow), now, request.b)
local record = make_record(request.b, {request.workflow, request.stage, request.actor, request.parts})
record.limit, record.retention = request.limit, request.retention
record.was.limit, record.was.retention = request.limit, request.retention
audit_batch('batch.opened', record, {limit = request.limit, metadata = request.metadata})
local tickets = {}
if request.count > 0 then
  write_slice(record)
  audit_batch('batch.appended', record, {offset = 0, count = request.count})
end
if request.seal then tickets = seal_record(record) or {} end
save_record(record)
if record.over == 0 then tickets = missing_tickets(record) end
return answer({
  existed = false, total = record.total, sealed = record.sealed, over = record.over, workflow = record.workflow,
  stage = record.stage, tickets = tickets, now = now,
})
