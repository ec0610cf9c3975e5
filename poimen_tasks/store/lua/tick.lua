#!lua flags=allow-oom
-- tick: a worker says that it lives and what it offers; one of them is elected and gets the fleet's chores.
-- A gap without any tick, or a clock that went back, holds all reaping for as long as a lease, so an outage kills nobody.
-- Request: worker, info {queue, slots}…, payload (opaque), period, lease, leave (true: it goes away).
-- Reply: {leader, now, gap, held, overdue, due, hungry, flights, calls, parked, keep, sweep, tickets,
--   expired {scope, epoch}…, releasing, keeping, drain (true: this worker is to leave)}
--@include prelude
--@include slots
-- Tickets of these queues that were looked for in vain, ever more seldom, while nobody served them: somebody does now.
local function hurry_tickets(offers)
  local offered, soon = {}, now + request.overdue
  for _, offer in ipairs(offers) do offered[offer[1]] = true end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', K.tickets, '(' .. soon, '+inf', 'LIMIT', 0, 500)) do
    local batch, slot = string.match(member, '^([^\t]*)\t(.*)$')
    local held = read_slot(batch, slot)
    if held and held.state == 'T' and offered[held.queue] then
      redis.call('HSET', K.slots(batch), slot, string.format('T|%d|0|%s', held.generation, held.queue))
      redis.call('ZADD', K.tickets, soon, member)
    end
  end
end

if not layout then redis.call('SET', K.layout, LAYOUT) end
local state = redis.call('HMGET', K.clock, 'tick', 'leader', 'until', 'held', 'lease')
local last, held = tonumber(state[1]), tonumber(state[4]) or 0
local gap = last and now - last or 0
local longest = math.max(request.lease, tonumber(state[5]) or 0)
if gap > math.max(2, 4 * request.period) or gap < 0 then
  held = now + longest
  redis.call('HSET', K.clock, 'held', held)
  audit('keeper.gap', {gap = gap, held = longest})
end
redis.call('HSET', K.clock, 'tick', now, 'lease', longest)

if request.leave then
  redis.call('HDEL', K.workers, request.worker)
  redis.call('HDEL', K.drains, request.worker)
  if state[2] == request.worker then redis.call('HDEL', K.clock, 'leader') end
else
  if redis.call('HEXISTS', K.workers, request.worker) == 0 then hurry_tickets(request.info) end
  redis.call('HSET', K.workers, request.worker, cmsgpack.pack({t = now, q = request.info, d = request.payload}))
end
-- Somebody asked this worker to leave.
local drain = not request.leave and redis.call('HEXISTS', K.drains, request.worker) == 1
local leader = state[2]
if not request.leave and (not leader or leader == request.worker or now > (tonumber(state[3]) or 0) or gap < 0) then
  leader = request.worker
  redis.call('HSET', K.clock, 'leader', leader, 'until', now + 3 * request.period)
end
if leader ~= request.worker and not request.leave then
  return cmsgpack.pack({leader = false, now = now, gap = gap, drain = drain})
end

-- What the fleet offers, from the workers that were seen lately.
local offers = {}
for _, worker in ipairs(redis.call('HKEYS', K.workers)) do
  local entry = cmsgpack.unpack(redis.call('HGET', K.workers, worker))
  if now - entry.t > math.max(5, 6 * request.period) and held <= now then
    redis.call('HDEL', K.workers, worker)
    redis.call('HDEL', K.drains, worker)
    audit('worker.lost', {worker = worker})
  else
    for _, offer in ipairs(entry.q or {}) do offers[offer[1]] = (offers[offer[1]] or 0) + offer[2] end
  end
end
redis.call('DEL', K.capacity)
for queue, slots in pairs(offers) do redis.call('HSET', K.capacity, queue, slots) end
if request.leave then return cmsgpack.pack({leader = false, now = now, gap = gap, drain = false}) end

-- Leases that end later than any can (a clock that went back) are cut to one lease from now.
for _, member in ipairs(redis.call('ZRANGEBYSCORE', K.leases, now + longest + 1, '+inf', 'LIMIT', 0, 500)) do
  redis.call('ZADD', K.leases, now + longest, member)
end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', K.expiring, '-inf', now, 'LIMIT', 0, 200)) do
  local batch, workflow = string.match(member, '^([^\t]*)\t(.*)$')
  redis.call('ZREM', K.batches, batch)
  redis.call('ZREM', K.workflow(workflow), batch)
  redis.call('ZREM', K.expiring, member)
end
-- Plain calls whose worker is gone, a few at a time; and old news of parked ones.
if held <= now then
  local some = redis.call('HRANDFIELD', K.running_calls, 20, 'WITHVALUES')
  for at = 1, #some, 2 do
    if (tonumber(string.match(some[at + 1], '^[^\t]*')) or 0) <= now then redis.call('HDEL', K.running_calls, some[at]) end
  end
end
redis.call('ZREMRANGEBYSCORE', K.resumed_calls, '-inf', now)
-- Pauses whose time is over, and states that nobody has to remember.
local expired = {}
for _, scope in ipairs(redis.call('ZRANGEBYSCORE', K.pause_due, '-inf', now, 'LIMIT', 0, 50)) do
  local flag = redis.call('HGET', K.pauses, scope)
  if flag then table.insert(expired, {scope, (read_flag(flag))}) else redis.call('ZREM', K.pause_due, scope) end
end
redis.call('ZREMRANGEBYSCORE', K.pause_index, '-inf', now)
-- Released calls that have not begun, each with its queue; '' for one that was not published yet.
local parked = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.paused_due, '-inf', now, 'LIMIT', 0, 100)) do
  table.insert(parked, {key, string.match(redis.call('HGET', K.paused_tries, key) or '', '^%d+\t(.*)$') or ''})
end
local overdue = {}
if held <= now then overdue = redis.call('ZRANGEBYSCORE', K.leases, '-inf', now, 'LIMIT', 0, 100) end
return cmsgpack.pack({
  leader = true, now = now, gap = gap, held = held > now, drain = drain,
  overdue = overdue,
  due = redis.call('ZRANGEBYSCORE', K.due, '-inf', now, 'LIMIT', 0, 100),
  hungry = redis.call('ZRANGE', K.hungry, 0, 49),
  flights = redis.call('ZRANGEBYSCORE', K.flight_due, '-inf', now, 'LIMIT', 0, 100),
  calls = redis.call('ZRANGEBYSCORE', K.waiting_due, '-inf', now, 'LIMIT', 0, 100),
  parked = parked,
  keep = redis.call('ZCOUNT', K.paused_keep, '-inf', now) > 0,
  sweep = redis.call('EXISTS', K.cache_sweeps) == 1 or redis.call('ZCOUNT', K.cache_expiry, '-inf', now) > 0,
  expired = expired,
  releasing = redis.call('ZRANGEBYSCORE', K.releasing, '-inf', now, 'LIMIT', 0, 20),
  keeping = redis.call('ZRANGEBYSCORE', K.keeping, '-inf', now, 'LIMIT', 0, 20),
  tickets = redis.call('ZRANGEBYSCORE', K.tickets, '-inf', now, 'LIMIT', 0, 200),
})
