-- Slots: idle (no field), ticketed `T|generation|tries|queue` or live `L|generation|token|queue`.
-- Only releasing or reaping frees a slot.
-- Counts by queue are kept beside them, per batch (qt:, ql: in the record) and for the fleet (t:, l:).
--@include ramp
--@include record
--@include backlog
local function count_slots(batch, queue, ticketed, live)
  if ticketed ~= 0 then
    redis.call('HINCRBY', K.record(batch), 'qt:' .. queue, ticketed)
    redis.call('HINCRBY', K.queues, 't:' .. queue, ticketed)
  end
  if live ~= 0 then
    redis.call('HINCRBY', K.record(batch), 'ql:' .. queue, live)
    redis.call('HINCRBY', K.queues, 'l:' .. queue, live)
  end
end

local function read_slot(batch, slot)
  local value = redis.call('HGET', K.slots(batch), slot)
  if not value then return nil end
  local state, generation, extra, queue = string.match(value, '^(%a)|(%d+)|([^|]*)|(.*)$')
  return {state = state, generation = tonumber(generation), extra = extra, queue = queue}
end

local function ticket_member(batch, slot) return batch .. '\t' .. slot end
local function lease_member(batch, slot, generation) return batch .. '\t' .. slot .. '\t' .. string.format('%d', generation) end

-- Put a ticket on a slot; the caller publishes it. A first ticket is overdue after `ticket_overdue`, a repeated one later.
local function ticket_slot(record, slot, queue, tries, priority_part)
  local generation = redis.call('HINCRBY', K.record(record.batch), 'generation', 1)
  local overdue = tonumber(request.overdue) or 2
  redis.call('HSET', K.slots(record.batch), slot, string.format('T|%d|%d|%s', generation, tries, queue))
  redis.call('ZADD', K.tickets, now + overdue * math.min(2 ^ tries, 32), ticket_member(record.batch, slot))
  return {record.batch, tonumber(slot), generation, queue, priority_part}
end

-- Make a slot idle again, whatever it was.
local function free_slot(record, slot, held)
  redis.call('HDEL', K.slots(record.batch), slot)
  if held.state == 'T' then
    redis.call('ZREM', K.tickets, ticket_member(record.batch, slot))
    count_slots(record.batch, held.queue, -1, 0)
  else
    redis.call('ZREM', K.leases, lease_member(record.batch, slot, held.generation))
    count_slots(record.batch, held.queue, 0, -1)
  end
end

-- The tickets that are missing now: what a caller publishes after items became claimable or slots free.
-- One ticket a batch and queue always; more only up to twice the slots that live workers offer there.
local function missing_tickets(record)
  local tickets = {}
  if record.over == 1 or record.cancel == 1 then
    if record.over == 1 or record.pending + record.delayed + record.waiting == 0 then redis.call('ZREM', K.hungry, record.batch) end
    return tickets
  end
  local paused = paused_parts(record)
  local wanted, order, ramped = {}, {}, false
  for p = 0, #record.parts - 1 do
    local claimable = record.claimable[p] or 0
    if claimable > 0 and paused[p] then
      hold(record, paused, p)
      claimable = 0
    end
    local room = claimable > 0 and ramp_room(record, p)
    if room and room < claimable then
      ramped = true
      claimable = math.max(0, room)
    end
    if claimable > 0 then
      local queue = part_queue(record.parts[p + 1])
      if not wanted[queue] then
        wanted[queue] = {claimable = 0, part = p}
        table.insert(order, queue)
      end
      wanted[queue].claimable = wanted[queue].claimable + claimable
    end
  end
  if #order == 0 then
    -- What waits for its turn under a ramp is looked at again by the keeper.
    if ramped then redis.call('ZADD', K.hungry, now, record.batch) else redis.call('ZREM', K.hungry, record.batch) end
    return tickets
  end
  -- A lane begun now would leave at once: the keeper asks again, until the sealer has caught up.
  if has_backlog(request.hard) then
    redis.call('ZADD', K.hungry, now, record.batch)
    return tickets
  end
  local used = redis.call('HLEN', K.slots(record.batch))
  local taken, hungry, free = nil, ramped, 0
  local served, any_served = {}, false
  for _, queue in ipairs(order) do
    served[queue] = (tonumber(redis.call('HGET', K.capacity, queue)) or 0) > 0
    any_served = any_served or served[queue]
  end
  for _, queue in ipairs(order) do
    local mine = redis.call('HMGET', K.record(record.batch), 'qt:' .. queue, 'ql:' .. queue)
    local all = redis.call('HMGET', K.queues, 't:' .. queue, 'l:' .. queue)
    local ticketed, live = tonumber(mine[1]) or 0, tonumber(mine[2]) or 0
    local room = 2 * (tonumber(redis.call('HGET', K.capacity, queue)) or 0) - (tonumber(all[1]) or 0) - (tonumber(all[2]) or 0)
    local want = wanted[queue].claimable - ticketed
    if record.limit > 0 then want = math.min(want, record.limit - used) end
    local issue = math.min(want, room, 500 - #tickets)
    -- A queue that nobody serves must not take the slots that a served one of this batch could use.
    if issue < 1 and want > 0 and ticketed + live == 0 and (served[queue] or not any_served) then issue = 1 end
    if want > math.max(issue, 0) then hungry = true end
    if issue > 0 and not taken then
      taken = {}
      for _, slot in ipairs(redis.call('HKEYS', K.slots(record.batch))) do taken[slot] = true end
    end
    for _ = 1, issue do
      while taken[tostring(free)] do free = free + 1 end
      taken[tostring(free)] = true
      table.insert(tickets, ticket_slot(record, tostring(free), queue, 0, wanted[queue].part))
    end
    if issue > 0 then
      count_slots(record.batch, queue, issue, 0)
      used = used + issue
    end
  end
  if hungry then redis.call('ZADD', K.hungry, now, record.batch) else redis.call('ZREM', K.hungry, record.batch) end
  return tickets
end
