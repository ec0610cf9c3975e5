#!lua
-- append_items: one more slice at an expected offset; a wrong offset is refused, so a repeated append never doubles.
-- Request: b batch, producer seconds, seal, and those of append.lua. Reply: {total, over, cancelled, tickets}
--@include once
--@include append
if once_reply then return once_reply end
local record = load_record(request.b)
if not record then return refuse('NOT_FOUND', request.b) end
if record.cancel == 1 then return answer({total = record.total, cancelled = true, tickets = {}}) end
if record.sealed == 1 then return refuse('SEALED', request.b) end
if request.offset ~= record.total then return refuse('OFFSET', record.total) end
if count_parts() > MOST_PARTS then return refuse('PARTS', request.b) end
local duplicate = find_duplicate(request.b, request.ids)
if duplicate then return refuse('DUPLICATE', duplicate) end
redis.call('HSET', K.record(request.b), 'parts', request.parts, 'producer', now + request.producer)
record.parts = cmsgpack.unpack(request.parts)
write_slice(record)
audit_batch('batch.appended', record, {offset = request.offset, count = request.count})
local tickets = nil
if request.seal then tickets = seal_record(record) end
save_record(record)
if not tickets then tickets = missing_tickets(record) end
return answer({total = record.total, over = record.over, tickets = tickets})
