#!lua flags=allow-oom
-- repair_slots: hold the slots of a batch against leases, tickets, running items and counters; put them right when asked.
-- A live slot without a lease, and running items without a slot, get a lease: the keeper reaps them when nobody renews it.
-- A ticket that nobody looks for is looked for again.
-- Request: b batch, repair, lease seconds.
-- Reply: {lanes = slots without lease, tickets = slots that are not looked for, runs = count of tokens without a slot,
--         drift = {queue, counted tickets, found, counted lanes, found}…, good, repaired}
--@include once
--@include slots
if once_reply then return once_reply end
local record = load_record(request.b)
if not record then return refuse('NOT_FOUND', request.b) end
local slots, tokens, found = {}, {}, {}
for _, part in ipairs(record.parts) do found[part_queue(part)] = {T = 0, L = 0} end
for _, slot in ipairs(redis.call('HKEYS', K.slots(request.b))) do
  local held = read_slot(request.b, slot)
  slots[slot] = held
  if held.state == 'L' then tokens[held.extra] = true end
  if not found[held.queue] then found[held.queue] = {T = 0, L = 0} end
  found[held.queue][held.state] = found[held.queue][held.state] + 1
end

local reply = {lanes = {}, tickets = {}, runs = 0, drift = {}, good = true, repaired = false}
for slot, held in pairs(slots) do
  local lease = held.state == 'L' and lease_member(request.b, slot, held.generation)
  if lease and not redis.call('ZSCORE', K.leases, lease) then
    table.insert(reply.lanes, tonumber(slot))
    if request.repair then redis.call('ZADD', K.leases, now + request.lease, lease) end
  elseif not lease and not redis.call('ZSCORE', K.tickets, ticket_member(request.b, slot)) then
    table.insert(reply.tickets, tonumber(slot))
    if request.repair then redis.call('ZADD', K.tickets, now, ticket_member(request.b, slot)) end
  end
end

-- The lists of the record are one batch's own: what is counted in them is compared before a slot is added below.
for queue, count in pairs(found) do
  local fields = redis.call('HMGET', K.record(request.b), 'qt:' .. queue, 'ql:' .. queue)
  local ticketed, live = tonumber(fields[1]) or 0, tonumber(fields[2]) or 0
  if ticketed ~= count.T or live ~= count.L then
    table.insert(reply.drift, {queue, ticketed, count.T, live, count.L})
    if request.repair then redis.call('HSET', K.record(request.b), 'qt:' .. queue, count.T, 'ql:' .. queue, count.L) end
  end
end

local free = 0
local running = redis.call('HGETALL', K.running(request.b))
for at = 1, #running, 2 do
  if not tokens[running[at]] then
    reply.runs = reply.runs + 1
    if request.repair then
      while slots[tostring(free)] do free = free + 1 end
      local slot, part = tostring(free), cmsgpack.unpack(running[at + 1]).p
      local queue = part_queue(record.parts[part + 1])
      local generation = redis.call('HINCRBY', K.record(request.b), 'generation', 1)
      redis.call('HSET', K.slots(request.b), slot, string.format('L|%d|%s|%s', generation, running[at], queue))
      redis.call('ZADD', K.leases, now + request.lease, lease_member(request.b, slot, generation))
      count_slots(request.b, queue, 0, 1)
      slots[slot] = true
    end
  end
end

reply.good = #reply.lanes + #reply.tickets + #reply.drift + reply.runs == 0
if request.repair and not reply.good then
  audit_batch('slots.repaired', record, {
    lanes = reply.lanes, tickets = reply.tickets, runs = reply.runs, drift = reply.drift, a = request.actor,
  })
  reply.repaired = true
end
return answer(reply)
