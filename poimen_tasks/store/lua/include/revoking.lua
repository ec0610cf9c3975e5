-- Revoking single items. One that waits gets its outcome at once. One that a lane holds is marked: its body is told at its
-- next checkpoint, and when it comes back for whatever reason (retried, given back, reaped) it gets its outcome instead.
-- `marks` of the record, msgpack: position → {t token of the lane, p partition, r reason, a actor, k signal or 0}.
-- A field `kill:<token>` asks the lane's worker for a signal: `<signal>:<position>`.
--@include attempts
local function read_marks(record) return record.marks and cmsgpack.unpack(record.marks) or {} end

local function write_marks(record, marks)
  if next(marks) == nil then
    record.marks = false
    redis.call('HDEL', K.record(record.batch), 'marks')
  else
    record.marks = cmsgpack.pack(marks)
    redis.call('HSET', K.record(record.batch), 'marks', record.marks)
  end
end

-- The partition of an item: a chunk's second column, behind the list's head and a float; see `encode_chunk`.
local function partition_of(record, position)
  if #record.parts == 1 then return 0 end
  local _, parts = cmsgpack.unpack_one(redis.call('HGET', K.items(record.batch), math.floor(position / 256)), 10)
  return type(parts) == 'table' and parts[position % 256 + 1] or parts
end

-- Where in the list of never claimed ranges a position is: index, first, stop. What came back stands in front in any
-- order and is lower than all that follows, so the search by halves is right for what follows; else all are looked at.
local function find_fresh(key, position)
  local count = redis.call('LLEN', key)
  local low, high = 0, count - 1
  while low <= high do
    local middle = math.floor((low + high) / 2)
    local first, stop = string.match(redis.call('LINDEX', key, middle), '^(%d+):(%d+)$')
    first, stop = tonumber(first), tonumber(stop)
    if position >= stop then low = middle + 1 elseif position < first then high = middle - 1 else return middle, first, stop end
  end
  for begin = 0, count - 1, 500 do
    for at, range in ipairs(redis.call('LRANGE', key, begin, begin + 499)) do
      local first, stop = string.match(range, '^(%d+):(%d+)$')
      first, stop = tonumber(first), tonumber(stop)
      if position >= first and position < stop then return begin + at - 1, first, stop end
    end
  end
  return nil
end

local function cut_fresh(key, position)
  local at, first, stop = find_fresh(key, position)
  if not at then return false end
  local before = position > first and string.format('%d:%d', first, position)
  local after = position + 1 < stop and string.format('%d:%d', position + 1, stop)
  redis.call('LSET', key, at, before or after or '')
  if before and after then redis.call('LINSERT', key, 'AFTER', before, after) end
  if not before and not after then redis.call('LREM', key, 1, '') end
  return true
end

-- Take an item out of where it waits. Returns the attempts it made, or nil when it does not wait.
local function withdraw(record, position, part)
  local batch, name = record.batch, string.format('%d', position)
  if redis.call('ZREM', K.delayed(batch), string.format('%d:%d', position, part)) == 1 then
    record.delayed = record.delayed - 1
    set_due(record)
  elseif redis.call('LREM', K.back(batch, part), 1, name) == 1 or cut_fresh(K.fresh(batch, part), position) then
    record.pending = record.pending - 1
    record.claimable[part] = record.claimable[part] - 1
  elseif redis.call('HDEL', K.parked(batch), name) == 1 then
    record.waiting = record.waiting - 1
  else
    return nil
  end
  local entry = read_attempt(batch, position, part)
  redis.call('HDEL', K.attempts(batch), name)
  return entry.a + entry.l
end

-- Withdraw these {position, partition} and record their outcome. Returns their ranges.
local function settle_revoked(record, items, reason, actor)
  table.sort(items, function(one, other) return one[1] < other[1] end)
  local positions, attempts, by_part = {}, {}, {}
  for _, item in ipairs(items) do
    local made = withdraw(record, item[1], item[2])
    if made then
      by_part[item[2]] = (by_part[item[2]] or 0) + 1
      table.insert(positions, item[1])
      table.insert(attempts, made)
    end
  end
  if #positions == 0 then return {} end
  record.cancelled = record.cancelled + #positions
  for part, count in pairs(by_part) do count_ended(record, part, 'cancelled', count) end
  local ranges = write_settled(record, positions, 2, 'Revoked', reason, attempts)
  audit_batch('item.revoked', record, naming(record, positions, {r = ranges, reason = reason, a = actor}))
  return ranges
end

local function holds(ranges, position)
  for at = 1, #ranges, 2 do
    if position >= ranges[at] and position < ranges[at + 1] then return true end
  end
  return false
end

-- A process is only ended for an item that its lane holds alone: of several, nobody here knows which one runs, and what
-- has not begun comes back as soon as the one that runs takes long.
local function ask_for_kill(record, token, held, marks)
  local mark = count_range(held) == 1 and marks[string.format('%d', held[1])]
  if mark and mark.k > 0 then
    redis.call('HSET', K.record(record.batch), 'kill:' .. token, string.format('%d:%d', mark.k, held[1]))
  else
    redis.call('HDEL', K.record(record.batch), 'kill:' .. token)
  end
end

-- Called by whatever takes items out of a lane's hands: marks of what ended are removed, what came back is settled.
-- Returns the ranges of what was settled.
local function settle_marked(record, token)
  if not record.marks then return {} end
  local marks, mine, groups = read_marks(record), false, {}
  local stored = redis.call('HGET', K.running(record.batch), token)
  local held = stored and cmsgpack.unpack(stored).r or {}
  for name, mark in pairs(marks) do
    if mark.t == token then
      mine = true
      local position = tonumber(name)
      if not holds(held, position) then
        marks[name] = nil
        local group = mark.a .. '\n' .. mark.r
        groups[group] = groups[group] or {mark.r, mark.a, {}}
        if not has_outcome(record.batch, position) then table.insert(groups[group][3], {position, mark.p}) end
      end
    end
  end
  if not mine then return {} end
  ask_for_kill(record, token, held, marks)
  write_marks(record, marks)
  local settled = {}
  for _, group in pairs(groups) do
    for _, edge in ipairs(settle_revoked(record, group[3], group[1], group[2])) do table.insert(settled, edge) end
  end
  return settled
end
