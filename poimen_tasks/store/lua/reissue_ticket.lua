#!lua flags=allow-oom
-- reissue_ticket: a ticket is overdue and its message seems lost: a new generation makes the old message void.
-- Request: b batch, s slot, reissue (false: only look again later). Reply: {tickets}
--@include once
--@include slots
if once_reply then return once_reply end
local record = load_record(request.b)
local slot = record and read_slot(request.b, request.s)
if not slot or slot.state ~= 'T' then
  redis.call('ZREM', K.tickets, ticket_member(request.b, request.s))
  return answer({tickets = {}})
end
local tries = (tonumber(slot.extra) or 0) + 1
if not request.reissue then
  redis.call('ZADD', K.tickets, now + (tonumber(request.overdue) or 2), ticket_member(request.b, request.s))
  return answer({tickets = {}})
end
local part = 0
for at, candidate in ipairs(record.parts) do
  if part_queue(candidate) == slot.queue then part = at - 1 break end
end
local ticket = ticket_slot(record, request.s, slot.queue, tries, part)
audit_batch('ticket.reissued', record, {slot = tonumber(request.s), tries = tries})
return answer({tickets = {ticket}})
