#!lua flags=allow-oom
-- seal_batch: no more items will come. Ends the batch when nothing is left to do.
-- Request: b batch. Reply: {over, total, tickets}
--@include once
--@include append
if once_reply then return once_reply end
local record = load_record(request.b)
if not record then return refuse('NOT_FOUND', request.b) end
local tickets = nil
if record.sealed == 0 then tickets = seal_record(record) end
save_record(record)
if not tickets then tickets = missing_tickets(record) end
return answer({over = record.over, total = record.total, tickets = tickets})
