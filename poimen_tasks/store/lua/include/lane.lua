-- One step of a lane. Request:
--   b batch   s slot   g generation   q queue   lease seconds
--   begin     true on the first step: the slot must carry this ticket
--   f         what finished since (see finish.lua)
--   k         how many items are wanted next; 0 with `then`:
--   t         'stay' keep the slot (a flush), 'yield' give it up under a fresh ticket, 'free' make it idle,
--             'decline' make it idle without new tickets for now: this worker does not know the task
--   limits    of the cache {entries, bytes}, when `f` has results to keep
--   have      numbers of the chunks that the lane has at hand
-- Reply: {s = 'go' | 'end', why, claim, chunks, info, tickets, late, over, others, revoked, calls = {id, message}… to publish,
--   again (claim once more: only hits were found so far), paused (what the lane holds is paused: what has not begun goes back)}
--@include claim
--@include cancelling
--@include revoking

-- Turn the ticket into a live lane. Returns false when the ticket is of an older generation.
local function begin_lane(record, token)
  local slot = read_slot(record.batch, request.s)
  if not slot or slot.state ~= 'T' or slot.generation ~= request.g then return false end
  redis.call('HSET', K.slots(record.batch), request.s, string.format('L|%d|%s|%s', slot.generation, token, slot.queue))
  redis.call('ZREM', K.tickets, ticket_member(record.batch, request.s))
  count_slots(record.batch, slot.queue, -1, 1)
  return true
end

local function holds_slot(record, token)
  local slot = read_slot(record.batch, request.s)
  return slot and slot.state == 'L' and slot.generation == request.g and slot.extra == token
end

-- Tickets out on this queue that are not of this batch: somebody else is waiting for the worker.
local function count_others(record)
  local mine = tonumber(redis.call('HGET', K.record(record.batch), 'qt:' .. request.q)) or 0
  local all = tonumber(redis.call('HGET', K.queues, 't:' .. request.q)) or 0
  return math.max(0, all - mine)
end

local function leave(record, token, reply, ticketed)
  local slot = read_slot(record.batch, request.s)
  free_slot(record, request.s, slot)
  if ticketed then
    reply.tickets = {ticket_slot(record, request.s, slot.queue, 0, request.p or 0)}
    count_slots(record.batch, slot.queue, 1, 0)
  end
  reply.s = 'end'
end

local function lane_step(may_claim)
  local token = owner
  local record = load_record(request.b)
  if not record then return answer({s = 'end', why = 'gone'}) end
  local reply = {s = 'go', tickets = {}}
  records[request.b] = record
  local function finally()
    close_others(request.b, reply.tickets)
    if #released_calls > 0 then reply.calls = released_calls end
    return answer(reply)
  end
  if request.begin then
    if record.over == 1 then return answer({s = 'end', why = 'over'}) end
    if not begin_lane(record, token) then return answer({s = 'end', why = 'stale'}) end
    local stored = redis.call('HMGET', K.record(request.b), 'parts', 'trace')
    reply.info = {
      workflow = record.workflow, stage = record.stage, actor = record.actor, named = record.named,
      parent = record.parent or nil, kind = record.kind or nil, parts = stored[1],
      round = record.round, trace = stored[2] or nil,
    }
  end
  local lease = lease_member(request.b, request.s, request.g)
  local mine = request.begin or holds_slot(record, token)
  if request.f then
    local result = finish_items(record, token, request.f)
    if result.late and #result.late > 0 then
      return cmsgpack.pack({s = 'late', late = result.late})
    end
  end
  if mine and (request.t ~= 'stay' or (request.k > 0 and may_claim)) then give_back_rest(record, token) end
  reply.revoked = settle_marked(record, token)
  drain_cancelled(record)
  if is_complete(record) then
    reply.tickets = end_batch(record)
    reply.s, reply.why, reply.over = 'end', 'over', true
    return finally()
  end
  if not mine then
    save_record(record)
    reply.s, reply.why = 'end', 'reaped'
    reply.tickets = missing_tickets(record)
    return finally()
  end
  reply.cancel = record.cancel == 1
  if request.k > 0 and may_claim then
    local surplus = record.limit > 0 and redis.call('HLEN', K.slots(request.b)) > record.limit
    local claim, why = nil, 'surplus'
    if not surplus then claim, why = claim_items(record, token, request.q, request.k) end
    if claim then
      redis.call('ZADD', K.leases, now + request.lease, lease)
      reply.claim, reply.others, reply.now = claim, count_others(record), now
    elseif is_complete(record) then
      reply.tickets = end_batch(record)
      reply.s, reply.why, reply.over = 'end', 'over', true
      return finally()
    elseif why == 'again' then
      redis.call('ZADD', K.leases, now + request.lease, lease)
      reply.again, reply.others, reply.now = true, count_others(record), now
    else
      leave(record, token, reply, false)
      reply.why = why
    end
    save_record(record)
    -- What came back may be another queue's, or more than this lane alone should serve.
    if (not claim and not reply.again) or record.came_back then reply.tickets = missing_tickets(record) end
  elseif request.t == 'stay' then
    redis.call('ZADD', K.leases, now + request.lease, lease)
    save_record(record)
    if record.came_back then reply.tickets = missing_tickets(record) end
    local held = is_anything_paused() and redis.call('HGET', K.running(record.batch), token)
    if held then reply.paused = paused_parts(record)[cmsgpack.unpack(held).p] end
  else
    local more = request.t == 'yield' and record.cancel == 0 and (record.claimable[request.p or 0] or 0) > 0
      and not (record.limit > 0 and redis.call('HLEN', K.slots(request.b)) > record.limit)
    leave(record, token, reply, more)
    reply.why = request.t
    save_record(record)
    if request.t == 'decline' then
      -- A ticket issued now might come straight back to the same worker, again and again; the keeper issues it soon.
      redis.call('ZADD', K.hungry, now, record.batch)
    else
      for _, ticket in ipairs(missing_tickets(record)) do table.insert(reply.tickets, ticket) end
    end
  end
  return finally()
end

-- A replayed step gives the same claim; the chunks are read again instead of being stored with the reply.
local function with_chunks(packed)
  local reply = type(packed) == 'string' and cmsgpack.unpack(packed)
  if not reply or not reply.claim then return packed end
  reply.chunks = chunks_of(request.b, reply.claim, request.have)
  return cmsgpack.pack(reply)
end
