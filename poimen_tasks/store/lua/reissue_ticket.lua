#!lua flags=allow-oom
-- reissue_ticket: a ticket is overdue and its message seems lost: a new generation makes the old message void.
-- One of a batch that is paused there is taken back: the resume issues another.
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
local paused, held, wanted = paused_parts(record), false, false
for part = 0, #record.parts - 1 do
  if record.claimable[part] > 0 and part_queue(record.parts[part + 1]) == slot.queue then
    if paused[part] then held = true else wanted = true end
  end
end
if held and not wanted then
  free_slot(record, request.s, slot)
  return answer({tickets = missing_tickets(record)})
end
local tries = (tonumber(slot.extra) or 0) + 1
if not request.reissue then
  -- Behind a backlog nobody can tell a lost message from one that waits: now and then the same ticket goes out once
  -- more, ever more seldom. Whichever message comes first begins the lane.
  local wait = (tonumber(request.overdue) or 2) * 2 ^ math.min(tries, 12)
  redis.call('HSET', K.slots(request.b), request.s, string.format('T|%d|%d|%s', slot.generation, tries, slot.queue))
  redis.call('ZADD', K.tickets, now + wait, ticket_member(request.b, request.s))
  if tries < 4 then return answer({tickets = {}}) end
end
local part = 0
for at, candidate in ipairs(record.parts) do
  if part_queue(candidate) == slot.queue then part = at - 1 break end
end
if not request.reissue then
  return answer({tickets = {{request.b, tonumber(request.s), slot.generation, slot.queue, part}}})
end
local ticket = ticket_slot(record, request.s, slot.queue, tries, part)
audit_batch('ticket.reissued', record, {slot = tonumber(request.s), tries = tries})
return answer({tickets = {ticket}})
