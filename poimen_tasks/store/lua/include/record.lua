-- A batch's record: load it, change the table, save what differs.
--@include audit
local FIELDS = {
  'workflow', 'stage', 'actor', 'parts', 'parent', 'kind', 'marks',
  'total', 'pending', 'delayed', 'waiting', 'running', 'ok', 'failed', 'cancelled', 'skipped', 'cached',
  'limit', 'sealed', 'over', 'cancel', 'ordinal', 'round', 'started', 'finished', 'callbacks', 'retention', 'named',
  'changes', -- grows with each save: who reads in slices sees whether all of it was one state
}
local TEXTS = 7 -- how many of them are texts; the others are numbers

-- The record that these values of FIELDS make. `was` holds the numbers as they are stored, to save only what differs.
local function make_record(batch, values)
  local record, was = {batch = batch, claimable = {}, was_claimable = {}}, {}
  for at = 1, TEXTS do record[FIELDS[at]] = values[at] end
  for at = TEXTS + 1, #FIELDS do
    local number = tonumber(values[at]) or 0
    record[FIELDS[at]] = number
    was[FIELDS[at]] = number
  end
  record.was = was
  record.parts = cmsgpack.unpack(record.parts)
  return record
end

-- The record as a table, or nil. `claimable[p]` counts what partition p offers to a claim.
local function load_record(batch)
  local values = redis.call('HMGET', K.record(batch), unpack(FIELDS))
  if not values[4] then return nil end
  local record, fields = make_record(batch, values), {}
  for p = 0, #record.parts - 1 do fields[p + 1] = 'c:' .. p end
  if #fields > 0 then
    for at, count in ipairs(redis.call('HMGET', K.record(batch), unpack(fields))) do
      local number = tonumber(count) or 0
      record.claimable[at - 1] = number
      record.was_claimable[at - 1] = number
    end
  end
  return record
end

local function save_record(record)
  local changes, size, was = {}, 0, record.was
  for at = TEXTS + 1, #FIELDS do
    local name = FIELDS[at]
    if record[name] ~= was[name] then
      changes[size + 1], changes[size + 2] = name, record[name]
      size = size + 2
      was[name] = record[name]
    end
  end
  for p, count in pairs(record.claimable) do
    if count ~= record.was_claimable[p] then
      changes[size + 1], changes[size + 2] = 'c:' .. p, count
      size = size + 2
      record.was_claimable[p] = count
    end
  end
  if size == 0 then return end
  record.changes = record.changes + 1
  was.changes = record.changes
  changes[size + 1], changes[size + 2] = 'changes', record.changes
  redis.call('HSET', K.record(record.batch), unpack(changes))
end

-- The header that every entry about a batch begins with.
local function audit_batch(kind, record, extra, payload)
  local header = extra or {}
  header.b, header.w, header.s, header.a = record.batch, record.workflow, record.stage, header.a or record.actor
  audit(kind, header, payload)
end

-- Fields of a partition, in the order of the Python `Part`.
local function part_queue(part) return part[1] end
local function part_activity(part) return part[5] end
local function part_cached(part) return part[10] == true end
local function part_max_lost(part) return tonumber(part[9]) or 3 end
