-- The end of a batch: state, callbacks as hidden batches, retention.
--@include slots
--@include counting
local function expire_batch(batch, seconds)
  for _, key in ipairs(BATCH_KEYS) do redis.call('EXPIRE', key(batch), seconds) end
end

-- Retention begins when the callbacks are settled, and nothing that covers the batch as a whole is paused.
local function begin_retention(record)
  local covers = covering(batch_scopes(record))
  for _, cover in ipairs(covers) do redis.call('SADD', K.held(cover[1]), 'b\t' .. record.batch) end
  if #covers > 0 then return end
  local seconds = math.max(1, math.floor(record.retention))
  expire_batch(record.batch, seconds)
  redis.call('ZADD', K.expiring, now + seconds, record.batch .. '\t' .. record.workflow)
  for _, kind in ipairs({'success', 'failure', 'complete'}) do
    local hidden = string.format('%s@%s.%d', record.batch, kind, record.round)
    if redis.call('EXISTS', K.record(hidden)) == 1 then expire_batch(hidden, seconds) end
  end
end

-- A batch is not over, though it was not listed, or was over before.
local function list_open(record)
  local created = tonumber(redis.call('HGET', K.record(record.batch), 'created')) or now
  redis.call('ZADD', K.open, record.parent and -created or created, record.batch)
end

-- A callback is a hidden batch of one item, under the same rules as any other.
local function open_callback(record, kind, stored)
  local callback = cmsgpack.unpack(stored)
  local hidden = string.format('%s@%s.%d', record.batch, kind, record.round)
  redis.call('HSET', K.record(hidden),
    'workflow', record.workflow, 'stage', record.stage, 'actor', record.actor,
    'parts', callback.parts, 'parent', record.batch, 'kind', kind,
    'total', 1, 'pending', 1, 'c:0', 1, 'limit', 1, 'sealed', 1, 'round', record.round,
    'retention', record.retention, 'created', now)
  redis.call('ZADD', K.open, -now, hidden)
  local trace = redis.call('HGET', K.record(record.batch), 'trace')
  if trace then redis.call('HSET', K.record(hidden), 'trace', trace) end
  redis.call('HSET', K.items(hidden), 0, callback.chunk)
  redis.call('RPUSH', K.fresh(hidden, 0), '0:1')
  audit_batch('callback.opened', record, {kind = kind, round = record.round})
  return missing_tickets(load_record(hidden))
end

local function open_callbacks(record)
  local tickets = {}
  local good = record.ok == record.total and record.cancel == 0
  local fields = redis.call('HMGET', K.record(record.batch), good and 'cb:success' or 'cb:failure', 'cb:complete')
  for at, stored in ipairs(fields) do
    if stored then
      record.callbacks = record.callbacks + 1
      local kind = at == 2 and 'complete' or (good and 'success' or 'failure')
      for _, ticket in ipairs(open_callback(record, kind, stored)) do table.insert(tickets, ticket) end
    end
  end
  return tickets
end

-- A hidden batch ended: its parent has one callback less to wait for.
local function settle_callback(record)
  local parent = load_record(record.parent)
  if not parent then return end
  parent.callbacks = math.max(0, parent.callbacks - 1)
  audit_batch('callback.finished', parent, {kind = record.kind, round = record.round, ok = record.ok})
  for _, status in ipairs(STATUSES) do
    if record[status] > 0 then count_total('c\t' .. status, record[status]) end
  end
  save_record(parent)
  if parent.callbacks == 0 and parent.over == 1 then begin_retention(parent) end
end

local function is_complete(record)
  return record.sealed == 1 and record.over == 0
    and record.pending + record.delayed + record.waiting + record.running == 0
end

-- Close a batch whose last outcome is in. Returns the tickets of its callbacks.
-- The caller has put `o` on the outcome entry and saves the record afterwards.
local function end_batch(record)
  record.over = 1
  record.finished = now
  for _, slot in ipairs(redis.call('HKEYS', K.slots(record.batch))) do
    free_slot(record, slot, read_slot(record.batch, slot))
  end
  for p = 0, #record.parts - 1 do redis.call('DEL', K.fresh(record.batch, p), K.back(record.batch, p)) end
  redis.call('DEL', K.running(record.batch), K.delayed(record.batch), K.attempts(record.batch), K.parked(record.batch))
  redis.call('DEL', K.checkpoints(record.batch))
  unhold(record)
  redis.call('ZREM', K.open, record.batch)
  redis.call('ZREM', K.due, record.batch)
  redis.call('ZREM', K.hungry, record.batch)
  local state = 'batch.completed'
  if record.cancel == 1 then state = 'batch.cancelled' elseif record.ok ~= record.total then state = 'batch.failed' end
  if record.parent then
    save_record(record)
    settle_callback(record)
    return {}
  end
  audit_batch(state, record, {
    total = record.total, ok = record.ok, failed = record.failed, cancelled = record.cancelled, skipped = record.skipped,
    cached = record.cached, round = record.round,
  })
  count_total('b\t' .. string.sub(state, #'batch.' + 1), 1)
  local tickets = open_callbacks(record)
  save_record(record)
  if record.callbacks == 0 then begin_retention(record) end
  return tickets
end

-- After items of a batch were settled or came back: it ends, or is saved and goes on. Returns the tickets to publish.
local function end_or_go_on(record)
  if is_complete(record) then return end_batch(record) end
  save_record(record)
  return missing_tickets(record)
end
