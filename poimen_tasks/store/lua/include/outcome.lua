-- Recording outcomes: ranges, the index, the stream; and outcomes that a script writes by itself.
--@include ending
local NIL = {}

-- msgpack array with holes, which the library's own packer cannot tell from a map. `{raw = bytes}` goes in as it is.
local function pack_array(values, count)
  local pieces = {string.char(0x90 + count)}
  for at = 1, count do
    local value = values[at]
    if value == nil or value == NIL then
      table.insert(pieces, '\192')
    elseif type(value) == 'table' and value.raw then
      table.insert(pieces, value.raw)
    else
      table.insert(pieces, cmsgpack.pack(value))
    end
  end
  return table.concat(pieces)
end

local function count_range(ranges)
  local count = 0
  for at = 1, #ranges, 2 do count = count + ranges[at + 1] - ranges[at] end
  return count
end

local function has_outcome(batch, position)
  local mark = redis.call('GETRANGE', K.index(batch), position * 4, position * 4 + 3)
  return mark ~= '' and mark ~= '\0\0\0\0'
end

-- One stream entry for these ranges; `over` marks the entry that ends the batch.
local function write_outcomes(record, ranges, blob)
  record.ordinal = record.ordinal + 1
  local mark = struct.pack('>I4', record.ordinal)
  for at = 1, #ranges, 2 do
    redis.call('SETRANGE', K.index(record.batch), ranges[at] * 4, string.rep(mark, ranges[at + 1] - ranges[at]))
  end
  if redis.call('EXISTS', K.checkpoints(record.batch)) == 1 then
    for at = 1, #ranges, 2 do
      for position = ranges[at], ranges[at + 1] - 1 do redis.call('HDEL', K.checkpoints(record.batch), position) end
    end
  end
  local id = string.format('%d-0', record.ordinal)
  if is_complete(record) then
    redis.call('XADD', K.outcomes(record.batch), id, 'b', blob, 'o', '1')
  else
    redis.call('XADD', K.outcomes(record.batch), id, 'b', blob)
  end
end

-- What a hash of lists by chunk says of each of these positions; false for nothing.
local function of_chunks(key, positions)
  local chunks, found = {}, {}
  for at, position in ipairs(positions) do
    local chunk = math.floor(position / 256)
    if not chunks[chunk] then
      local stored = redis.call('HGET', key, chunk)
      chunks[chunk] = stored and cmsgpack.unpack(stored) or {}
    end
    found[at] = chunks[chunk][position % 256 + 1] or false
  end
  return found
end

-- The ids of these positions when the batch has custom ones, else nil. `named` of a record: 1 for ids, 2 for task ids.
local function names_of(record, positions)
  if record.named % 2 == 0 then return NIL end
  local names = of_chunks(K.names(record.batch), positions)
  for at, name in ipairs(names) do names[at] = name or string.format('%d', positions[at]) end
  return names
end

local function positions_of(ranges)
  local positions = {}
  for at = 1, #ranges, 2 do
    for position = ranges[at], ranges[at + 1] - 1 do table.insert(positions, position) end
  end
  return positions
end

-- The header of an entry about items, with their own ids (`i`) and task ids (`t`, '' for none) where the batch has any.
local function naming(record, positions, header)
  if record.named % 2 == 1 then header.i = names_of(record, positions) end
  if record.named >= 2 then
    header.t = of_chunks(K.labels(record.batch), positions)
    for at, label in ipairs(header.t) do header.t[at] = label or '' end
  end
  return header
end

-- Positions as flat ranges, in the same order.
local function ranges_of(positions)
  local ranges = {}
  for _, position in ipairs(positions) do
    if #ranges > 0 and ranges[#ranges] == position then
      ranges[#ranges] = position + 1
    else
      table.insert(ranges, position)
      table.insert(ranges, position + 1)
    end
  end
  return ranges
end

-- Outcomes of items whose results (encoded values beside `positions`) came from the cache.
local function write_cached(record, positions, values)
  local ranges, places = ranges_of(positions), {}
  for at = 1, #positions do places[at] = at - 1 end
  local results = {raw = struct.pack('>BI2', 0xdc, #values) .. table.concat(values)}
  write_outcomes(record, ranges, pack_array({ranges, 0, NIL, NIL, NIL, results, NIL, NIL, '', now,
    names_of(record, positions), places}, 12))
  return ranges
end

-- Outcomes that no worker reported: status 1 failed (with type and message) or 2 cancelled.
-- `attempts` is a list beside `positions`.
local function write_settled(record, positions, status, kind, message, attempts)
  local ranges, statuses, errors = ranges_of(positions), {}, {}
  for at = 1, #positions do
    statuses[at] = status
    errors[at] = {at - 1, kind, message, ''}
  end
  local durations = {}
  for at = 1, #positions do durations[at] = 0 end
  local blob = pack_array({ranges, now, NIL, durations, statuses, NIL, errors, attempts or NIL, '', now,
    names_of(record, positions), NIL}, 12)
  write_outcomes(record, ranges, blob)
  return ranges
end
