#!lua flags=allow-oom
-- set_concurrency: another limit for a batch. Up: the missing tickets come back. Down: tickets are withdrawn first,
-- surplus lanes leave at their next claim. Request: b batch, limit (0: none), actor. Reply: {limit, tickets}
--@include once
--@include slots
if once_reply then return once_reply end
--@sound
local record = load_record(request.b)
if not record then return refuse('NOT_FOUND', request.b) end
if record.over == 0 and record.limit ~= request.limit then
  audit_batch('batch.concurrency_changed', record, {a = request.actor, from = record.limit, to = request.limit})
  record.limit = request.limit
  if request.limit > 0 then
    local surplus = redis.call('HLEN', K.slots(request.b)) - request.limit
    for _, slot in ipairs(redis.call('HKEYS', K.slots(request.b))) do
      if surplus <= 0 then break end
      local held = read_slot(request.b, slot)
      if held.state == 'T' then
        free_slot(record, slot, held)
        surplus = surplus - 1
      end
    end
  end
  save_record(record)
end
return answer({limit = record.limit, tickets = missing_tickets(record)})
