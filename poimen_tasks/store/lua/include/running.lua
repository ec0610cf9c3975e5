-- What runs in a scope, found from the live leases: as many looks as there are lanes, whatever the size of the batches.
--@include pausing
--@include paused_calls

-- Whether a scope covers a batch (`fields`: workflow, parent, parts of its record) as a whole: true, false, or nil where
-- that depends on the partition.
local function covers_batch(scope, batch, fields)
  local kind = string.sub(scope, 1, 2)
  if scope == '*' then return true end
  if kind == 'w:' then return string.sub(scope, 3) == fields[1] end
  if kind == 'b:' then return string.sub(scope, 3) == (fields[2] or batch) end
  return nil
end

local function covers_part(scope, part)
  return scope == 'q:' .. part_queue(part) or scope == 'a:' .. part_activity(part)
end

-- Rows {batch, activity, flat ranges of positions, time of the claim}.
local function running_in(scope)
  local rows, known = {}, {}
  for _, member in ipairs(redis.call('ZRANGE', K.leases, 0, -1)) do
    local batch, slot = string.match(member, '^([^\t]*)\t([^\t]*)\t')
    if known[batch] == nil then
      local fields = redis.call('HMGET', K.record(batch), 'workflow', 'parent', 'parts')
      local whole = covers_batch(scope, batch, fields)
      known[batch] = fields[3] and whole ~= false and {whole = whole, parts = cmsgpack.unpack(fields[3])}
    end
    local record = known[batch]
    local token = record and string.match(redis.call('HGET', K.slots(batch), slot) or '', '^L|%d+|([^|]*)|')
    local stored = token and redis.call('HGET', K.running(batch), token)
    if stored then
      local holding = cmsgpack.unpack(stored)
      local part = record.parts[holding.p + 1]
      if record.whole or covers_part(scope, part) then
        table.insert(rows, {batch, part_activity(part), holding.r, holding.t or 0})
      end
    end
  end
  return rows
end
