#!lua flags=allow-oom
-- promote_batch: delayed items that are due become claimable, tickets that are missing are issued, a cancelled batch is drained.
-- Request: b batch. Reply: {moved, tickets}
--@include once
--@include cancelling
if once_reply then return once_reply end
local record = load_record(request.b)
if not record or record.over == 1 then
  redis.call('ZREM', K.due, request.b)
  redis.call('ZREM', K.hungry, request.b)
  return answer({moved = 0, tickets = {}})
end
local moved, tickets = 0, nil
if drain_cancelled(record) > 0 then
  if is_complete(record) then tickets = end_batch(record) end
else
  moved = promote_due(record)
end
save_record(record)
if not tickets then tickets = missing_tickets(record) end
return answer({moved = moved, tickets = tickets})
