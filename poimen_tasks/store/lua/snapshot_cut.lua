#!lua flags=allow-oom
-- snapshot_cut: what one batch is at this instant, as far as it can change: its record, where its outcomes are, and what
-- its unfinished items carry. Items and outcomes are only ever added to, so they are read afterwards, up to these lengths.
-- It changes nothing and keeps no reply.
-- Request: b batch, most (more entries than that are not sent, unless `whole` is true).
-- Reply: false for a batch that is not there, else {now, record = {field, value}…, index, running = {position, part, since}…,
--   held = entries of what came back, waits or left a state; false when there are more than `most`, else
--   attempts, delayed, checkpoints; hidden = batches of its callbacks: {id, record, items, outcomes, attempts, delayed, checkpoints}…}
--@include prelude
local FIRST_LANES = 200

local function entries_of(batch)
  return redis.call('HGETALL', K.attempts(batch)), redis.call('ZRANGE', K.delayed(batch), 0, -1, 'WITHSCORES'),
    redis.call('HGETALL', K.checkpoints(batch))
end

local function running_of(batch)
  local found = {}
  local tokens = redis.call('HLEN', K.running(batch)) <= FIRST_LANES and redis.call('HVALS', K.running(batch)) or {}
  for _, packed in ipairs(tokens) do
    local holding = cmsgpack.unpack(packed)
    if holding.r[1] then table.insert(found, {holding.r[1], holding.p, holding.t or 0}) end
  end
  return found
end

local function hidden_of(batch, round)
  local found = {}
  for _, kind in ipairs({'success', 'failure', 'complete'}) do
    local id = string.format('%s@%s.%d', batch, kind, round)
    if redis.call('HEXISTS', K.record(id), 'parts') == 1 then
      local attempts, delayed, checkpoints = entries_of(id)
      table.insert(found, {
        id, redis.call('HGETALL', K.record(id)), redis.call('HGET', K.items(id), 0),
        redis.call('XRANGE', K.outcomes(id), '-', '+', 'COUNT', 100), attempts, delayed, checkpoints,
        redis.call('GET', K.index(id)) or '',
      })
    end
  end
  return found
end

if redis.call('HEXISTS', K.record(request.b), 'parts') == 0 then return cmsgpack.pack(false) end
local round = tonumber(redis.call('HGET', K.record(request.b), 'round')) or 0
local reply = {
  now = now, record = redis.call('HGETALL', K.record(request.b)), index = redis.call('GET', K.index(request.b)) or '',
  running = running_of(request.b), hidden = hidden_of(request.b, round), held = false,
}
local count = redis.call('HLEN', K.attempts(request.b)) + redis.call('ZCARD', K.delayed(request.b))
  + redis.call('HLEN', K.checkpoints(request.b))
if request.whole or count <= request.most then
  reply.held = count
  reply.attempts, reply.delayed, reply.checkpoints = entries_of(request.b)
end
return cmsgpack.pack(reply)
