-- Draining a cancelled batch: what is pending or delayed gets its outcome, at most 500 items a call.
-- Whatever comes back after the flag was raised (given back, retried, reaped) is drained by the script that brings it back.
--@include flight

-- The partition of every parked item, where only one has cached results; nil where there are several.
local function only_cached(record)
  local found = nil
  for part = 0, #record.parts - 1 do
    if part_cached(record.parts[part + 1]) then
      if found then return nil end
      found = part
    end
  end
  return found
end

local function drain_cancelled(record)
  if record.cancel == 0 or record.pending + record.delayed + record.waiting == 0 then return 0 end
  local reason = redis.call('HGET', K.record(record.batch), 'cancel_reason') or ''
  local positions, from_delayed = {}, 0
  for part = 0, #record.parts - 1 do
    local before = #positions
    while #positions < 500 do
      local position = redis.call('LPOP', K.back(record.batch, part))
      if not position then break end
      if not has_outcome(record.batch, position) then
        table.insert(positions, tonumber(position))
        redis.call('HDEL', K.attempts(record.batch), position)
      end
    end
    while #positions < 500 do
      local range = redis.call('LPOP', K.fresh(record.batch, part))
      if not range then break end
      local low, high = string.match(range, '^(%d+):(%d+)$')
      low, high = tonumber(low), tonumber(high)
      local stop = math.min(high, low + 500 - #positions)
      if stop < high then redis.call('LPUSH', K.fresh(record.batch, part), string.format('%d:%d', stop, high)) end
      for position = low, stop - 1 do table.insert(positions, position) end
    end
    record.claimable[part] = record.claimable[part] - (#positions - before)
    count_ended(record, part, 'cancelled', #positions - before)
  end
  record.pending = record.pending - #positions
  if #positions < 500 and record.delayed > 0 then
    local by_part = {}
    for _, member in ipairs(redis.call('ZRANGE', K.delayed(record.batch), 0, 499 - #positions)) do
      local position, part = string.match(member, '^(%d+):(%d+)$')
      by_part[part] = (by_part[part] or 0) + 1
      redis.call('ZREM', K.delayed(record.batch), member)
      redis.call('HDEL', K.attempts(record.batch), position)
      table.insert(positions, tonumber(position))
      from_delayed = from_delayed + 1
    end
    record.delayed = record.delayed - from_delayed
    for part, count in pairs(by_part) do count_ended(record, tonumber(part), 'cancelled', count) end
    set_due(record)
  end
  if #positions < 500 and record.waiting > 0 then
    local parked = redis.call('HRANDFIELD', K.parked(record.batch), 500 - #positions)
    for _, position in ipairs(parked) do table.insert(positions, tonumber(position)) end
    if #parked > 0 then redis.call('HDEL', K.parked(record.batch), unpack(parked)) end
    record.waiting = record.waiting - #parked
    count_ended(record, only_cached(record), 'cancelled', #parked)
  end
  record.cancelled = record.cancelled + #positions
  if #positions > 0 then
    local ranges = write_settled(record, positions, 2, 'Cancelled', reason)
    audit_batch('item.cancelled', record, naming(record, positions, {r = ranges, reason = reason}))
  end
  -- What this call could not settle is the keeper's to go on with.
  if record.pending + record.delayed + record.waiting > 0 then redis.call('ZADD', K.hungry, now, record.batch) end
  return #positions
end
