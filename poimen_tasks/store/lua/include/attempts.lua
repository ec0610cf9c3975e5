-- The attempt record of an item that came back, msgpack map:
--   p partition   a attempts made   l times lost   s 1: runs alone   n times claimed from the back list
--   c the call of its next attempt, when a retry changed it   d when it became due
--@include outcome
local function read_attempt(batch, position, part)
  local stored = redis.call('HGET', K.attempts(batch), position)
  if stored then return cmsgpack.unpack(stored) end
  return {p = part, a = 0, l = 0, s = 0, n = 0}
end

local function write_attempt(batch, position, entry)
  redis.call('HSET', K.attempts(batch), position, cmsgpack.pack(entry))
end

-- Take `done` out of `have`; nil when it is not all there. Both are flat ranges of at most a claim's size.
local function subtract(have, done)
  local held, rest = {}, {}
  for at = 1, #have, 2 do
    for position = have[at], have[at + 1] - 1 do held[position] = true end
  end
  for at = 1, #done, 2 do
    for position = done[at], done[at + 1] - 1 do
      if not held[position] then return nil end
      held[position] = nil
    end
  end
  for at = 1, #have, 2 do
    for position = have[at], have[at + 1] - 1 do
      if held[position] then
        if #rest > 0 and rest[#rest] == position then
          rest[#rest] = position + 1
        else
          table.insert(rest, position)
          table.insert(rest, position + 1)
        end
      end
    end
  end
  return rest
end

local function set_due(record)
  local first = redis.call('ZRANGE', K.delayed(record.batch), 0, 0, 'WITHSCORES')
  if first[2] then redis.call('ZADD', K.due, first[2], record.batch) else redis.call('ZREM', K.due, record.batch) end
end

local function delay_item(record, position, part, due)
  redis.call('ZADD', K.delayed(record.batch), due, string.format('%d:%d', position, part))
  record.delayed = record.delayed + 1
end

-- Move what is due to the back list, at most 200 items.
local function promote_due(record)
  if record.delayed == 0 then return 0 end
  local members = redis.call('ZRANGEBYSCORE', K.delayed(record.batch), '-inf', now, 'LIMIT', 0, 200)
  for _, member in ipairs(members) do
    local position, part = string.match(member, '^(%d+):(%d+)$')
    part = tonumber(part)
    redis.call('RPUSH', K.back(record.batch, part), position)
    record.claimable[part] = record.claimable[part] + 1
  end
  if #members > 0 then
    redis.call('ZREM', K.delayed(record.batch), unpack(members))
    record.delayed = record.delayed - #members
    record.pending = record.pending + #members
    record.came_back = true
    set_due(record)
  end
  return #members
end
