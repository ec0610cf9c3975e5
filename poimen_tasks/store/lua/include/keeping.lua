-- Batches that ended before their scope was paused keep their keys while it is; the resume begins their retention anew.
--@include ending
local MOST_KEPT = 20

-- The next batches to look at, oldest first, and where to go on.
local function next_ended(scope, cursor)
  local kind, name = string.sub(scope, 1, 2), string.sub(scope, 3)
  if kind == 'b:' then return cursor == 0 and {name} or {}, 1 end
  local key = kind == 'w:' and K.workflow(name) or scope == '*' and K.batches
  if not key then return {}, cursor end
  local batches = {}
  local found = redis.call('ZRANGEBYSCORE', key, '(' .. string.format('%.17g', cursor), '+inf', 'WITHSCORES', 'LIMIT', 0, MOST_KEPT)
  for at = 1, #found, 2 do
    table.insert(batches, found[at])
    cursor = tonumber(found[at + 1])
  end
  return batches, cursor
end

local function persist_batch(batch)
  for _, key in ipairs(BATCH_KEYS) do redis.call('PERSIST', key(batch)) end
end

local function keep_batch(scope, batch)
  local fields = redis.call('HMGET', K.record(batch), 'workflow', 'over', 'round')
  if fields[2] ~= '1' or redis.call('ZREM', K.expiring, batch .. '\t' .. fields[1]) == 0 then return end
  persist_batch(batch)
  for _, callback in ipairs({'success', 'failure', 'complete'}) do
    local hidden = string.format('%s@%s.%d', batch, callback, tonumber(fields[3]) or 0)
    if redis.call('EXISTS', K.record(hidden)) == 1 then persist_batch(hidden) end
  end
  redis.call('SADD', K.held(scope), 'b\t' .. batch)
end

-- Some more of them; the keeper goes on while there are.
local function keep_some(scope)
  local key = K.pause_state(scope)
  if redis.call('HEXISTS', K.pauses, scope) == 0 then
    redis.call('ZREM', K.keeping, scope)
    return
  end
  local batches, cursor = next_ended(scope, tonumber(redis.call('HGET', key, 'kept')) or 0)
  for _, batch in ipairs(batches) do keep_batch(scope, batch) end
  redis.call('HSET', key, 'kept', cursor)
  if #batches == MOST_KEPT then redis.call('ZADD', K.keeping, now, scope) else redis.call('ZREM', K.keeping, scope) end
end
