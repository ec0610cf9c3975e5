#!lua flags=allow-oom
-- repair_fleet: hold the fleet's leases, tickets and counters against the slots they speak of; put them right when asked.
-- Exact only when it sees all of them in one step, so it is the one script that is not cut into slices; past `most` slots
-- it looks at nothing and says so. Run `repair_slots` on every open batch before.
-- Request: repair, most. Reply: {looked, leases = members without a lane, tickets = members without a ticket,
--         drift = {queue, counted tickets, found, counted lanes, found}…, good, repaired}
--@include once
--@include slots
if once_reply then return once_reply end
local reply = {looked = true, leases = {}, tickets = {}, drift = {}, good = true, repaired = false}
if redis.call('ZCARD', K.leases) + redis.call('ZCARD', K.tickets) > request.most then
  reply.looked = false
  return answer(reply)
end

local found = {}
local function count(key, state, pattern, orphans)
  for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    local batch, slot, generation = string.match(member, pattern)
    local held = batch and read_slot(batch, slot)
    if held and held.state == state and (not generation or held.generation == tonumber(generation)) then
      found[held.queue] = found[held.queue] or {T = 0, L = 0}
      found[held.queue][state] = found[held.queue][state] + 1
    else
      table.insert(orphans, member)
      if request.repair then redis.call('ZREM', key, member) end
    end
  end
end
count(K.leases, 'L', '^([^\t]*)\t([^\t]*)\t([^\t]*)$', reply.leases)
count(K.tickets, 'T', '^([^\t]*)\t([^\t]*)$', reply.tickets)

local counted = {}
local stored = redis.call('HGETALL', K.queues)
for at = 1, #stored, 2 do
  local kind, queue = string.match(stored[at], '^([tl]):(.*)$')
  if kind then
    counted[queue] = counted[queue] or {t = 0, l = 0}
    counted[queue][kind] = tonumber(stored[at + 1]) or -1  -- what is no number is somebody else's
    found[queue] = found[queue] or {T = 0, L = 0}
  end
end
for queue, have in pairs(found) do
  local was = counted[queue] or {t = 0, l = 0}
  if was.t ~= have.T or was.l ~= have.L then
    table.insert(reply.drift, {queue, was.t, have.T, was.l, have.L})
    if request.repair then redis.call('HSET', K.queues, 't:' .. queue, have.T, 'l:' .. queue, have.L) end
  end
end

reply.good = #reply.leases + #reply.tickets + #reply.drift == 0
if request.repair and not reply.good then
  audit('fleet.repaired', {leases = reply.leases, tickets = reply.tickets, drift = reply.drift, a = request.actor})
  reply.repaired = true
end
return answer(reply)
