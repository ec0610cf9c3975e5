-- Writing a slice of items. Request fields:
--   offset  the position of its first item     count  how many
--   parts   msgpack list of all partitions so far       runs  {partition, lo, hi} of what is claimable at once
--   labels   {chunk number, msgpack list of task ids}, of chunks with items that have one; '' is none
--   digests  {chunk number, 32 bytes an item}, of chunks with items whose results are cached
--   delayed {position, partition, due}          ids  custom ids in order, or nil        big  positions kept out of line (or written ahead by `put_big`)
-- ARGV[5..] chunk blobs, then the calls of `big`.
--@include attempts

-- Every step looks at all partitions of its batch, and Lua spreads no more than some thousands of values.
local MOST_PARTS = 1000
local function count_parts() return #cmsgpack.unpack(request.parts) end

-- The first id that another position has already, or nil.
local function find_duplicate(batch, ids)
  if not ids or #ids == 0 then return nil end
  local known = redis.call('HMGET', K.ids(batch), unpack(ids))
  for at, position in ipairs(known) do
    if position and tonumber(position) ~= request.offset + at - 1 then return ids[at] end
  end
  return nil
end

local function write_names(batch, ids)
  local pairs_list = {}
  for at, id in ipairs(ids) do
    table.insert(pairs_list, id)
    table.insert(pairs_list, request.offset + at - 1)
  end
  redis.call('HSET', K.ids(batch), unpack(pairs_list))
  for first = 1, #ids, 256 do
    local names = {}
    for at = first, math.min(first + 255, #ids) do table.insert(names, ids[at]) end
    redis.call('HSET', K.names(batch), math.floor((request.offset + first - 1) / 256), cmsgpack.pack(names))
  end
end

-- One entry of the fresh list while ranges follow each other, so that a plain batch has a single one.
local function push_fresh(batch, part, low, high)
  local key = K.fresh(batch, part)
  local last = redis.call('LINDEX', key, -1)
  if last then
    local first, stop = string.match(last, '^(%d+):(%d+)$')
    if tonumber(stop) == low then
      redis.call('LSET', key, -1, string.format('%s:%d', first, high))
      return
    end
  end
  redis.call('RPUSH', key, string.format('%d:%d', low, high))
end

local function write_slice(record)
  local batch = record.batch
  local first = math.floor(request.offset / 256)
  local chunks = math.ceil(request.count / 256)
  for at = 1, chunks do redis.call('HSETNX', K.items(batch), first + at - 1, ARGV[4 + at]) end
  for at, position in ipairs(request.big or {}) do redis.call('HSET', K.big(batch), position, ARGV[4 + chunks + at]) end
  redis.call('PERSIST', K.big(batch))
  for _, pair in ipairs(request.digests or {}) do redis.call('HSET', K.digests(batch), pair[1], pair[2]) end
  if request.ids and #request.ids > 0 then
    write_names(batch, request.ids)
    record.named = record.named % 2 == 0 and record.named + 1 or record.named
  end
  if request.labels and #request.labels > 0 then
    for _, pair in ipairs(request.labels) do redis.call('HSET', K.labels(batch), pair[1], pair[2]) end
    record.named = record.named < 2 and record.named + 2 or record.named
  end
  for part = #record.claimable, #record.parts - 1 do
    if not record.claimable[part] then record.claimable[part] = 0 end
  end
  for _, run in ipairs(request.runs) do
    push_fresh(batch, run[1], run[2], run[3])
    record.claimable[run[1]] = record.claimable[run[1]] + run[3] - run[2]
    record.pending = record.pending + run[3] - run[2]
  end
  for _, item in ipairs(request.delayed or {}) do
    local entry = {p = item[2], a = 0, l = 0, s = 0, n = 0, d = item[3]}
    write_attempt(batch, item[1], entry)
    delay_item(record, item[1], item[2], item[3])
  end
  if #(request.delayed or {}) > 0 then set_due(record) end
  record.total = record.total + request.count
end

-- A sealed batch with nothing left to do ends here: empty, or all done before the seal came.
local function seal_record(record)
  record.sealed = 1
  audit_batch('batch.sealed', record, {total = record.total})
  if not is_complete(record) then return nil end
  record.ordinal = record.ordinal + 1
  redis.call('XADD', K.outcomes(record.batch), string.format('%d-0', record.ordinal), 'b', '', 'o', '1')
  return end_batch(record)
end
