-- What a resumed scope had held back gets its tickets, some at a time; what other scopes cover stays held by those.
--@include ending
--@include paused_calls
local MOST_RELEASED, MOST_RELEASED_TICKETS, GO_ON_AFTER = 100, 500, 2

local function release_batch(batch, tickets)
  local record = load_record(batch)
  if not record then return end
  if record.over == 1 then
    if record.callbacks == 0 and not record.parent then begin_retention(record) end
    return
  end
  for _, ticket in ipairs(missing_tickets(record)) do table.insert(tickets, ticket) end
end

-- Returns {left (call release_held again), released, tickets, calls}.
local function release_some(scope)
  local reply = {left = false, released = 0, tickets = {}, calls = {}}
  if redis.call('HEXISTS', K.pauses, scope) == 1 then
    redis.call('ZREM', K.releasing, scope)
    return reply
  end
  while reply.released < MOST_RELEASED and #reply.tickets < MOST_RELEASED_TICKETS do
    local member = redis.call('SPOP', K.held(scope))
    if not member then break end
    reply.released = reply.released + 1
    local kind, name = string.match(member, '^(%a)\t(.*)$')
    if kind == 'b' then release_batch(name, reply.tickets) else release_paused_call(name, reply.calls) end
  end
  reply.left = redis.call('EXISTS', K.held(scope)) == 1
  if reply.left then redis.call('ZADD', K.releasing, now + GO_ON_AFTER, scope) else redis.call('ZREM', K.releasing, scope) end
  return reply
end
