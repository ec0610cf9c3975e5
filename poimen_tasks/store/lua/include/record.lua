-- A batch's record: load it, change the table, save what differs.
--@include audit
local TEXTS = {'workflow', 'stage', 'actor', 'parts', 'parent', 'kind'}
local NUMBERS = {
  'total', 'pending', 'delayed', 'waiting', 'running', 'ok', 'failed', 'cancelled', 'skipped', 'cached',
  'limit', 'sealed', 'over', 'cancel', 'ordinal', 'round', 'started', 'finished', 'callbacks', 'retention', 'named',
}
local RECORD_FIELDS = {}
for _, name in ipairs(TEXTS) do table.insert(RECORD_FIELDS, name) end
for _, name in ipairs(NUMBERS) do table.insert(RECORD_FIELDS, name) end

-- The record as a table, or nil. `claimable[p]` counts what partition p offers to a claim.
local function load_record(batch)
  local values = redis.call('HMGET', K.record(batch), unpack(RECORD_FIELDS))
  if not values[4] then return nil end
  local record = {batch = batch, was = {}, claimable = {}, was_claimable = {}}
  for at, name in ipairs(TEXTS) do record[name] = values[at] end
  for at, name in ipairs(NUMBERS) do
    local number = tonumber(values[#TEXTS + at]) or 0
    record[name] = number
    record.was[name] = number
  end
  record.parts = cmsgpack.unpack(record.parts)
  local fields = {}
  for p = 0, #record.parts - 1 do fields[p + 1] = 'c:' .. p end
  if #fields > 0 then
    local counts = redis.call('HMGET', K.record(batch), unpack(fields))
    for at, count in ipairs(counts) do
      record.claimable[at - 1] = tonumber(count) or 0
      record.was_claimable[at - 1] = record.claimable[at - 1]
    end
  end
  return record
end

local function save_record(record)
  local changes = {}
  for _, name in ipairs(NUMBERS) do
    if record[name] ~= record.was[name] then
      table.insert(changes, name)
      table.insert(changes, record[name])
      record.was[name] = record[name]
    end
  end
  for p, count in pairs(record.claimable) do
    if count ~= record.was_claimable[p] then
      table.insert(changes, 'c:' .. p)
      table.insert(changes, count)
      record.was_claimable[p] = count
    end
  end
  if #changes > 0 then redis.call('HSET', K.record(record.batch), unpack(changes)) end
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
local function part_max_lost(part) return tonumber(part[9]) or 3 end
