-- A lane takes items. It serves one queue and takes from one partition at a time, skipping paused ones.
-- Order within a partition: what came back, then what was never claimed.
-- The places of two later features are marked: cache look-up, and parking behind a running equal call.
--@include finish

-- From the back list: those with an outcome by now are dropped, a solo item is claimed alone.
local function claim_back(record, part, count)
  local key = K.back(record.batch, part)
  local ranges, entries = {}, {}
  while #entries < count do
    local position = redis.call('LPOP', key)
    if not position then break end
    position = tonumber(position)
    if not has_outcome(record.batch, position) then
      local entry = read_attempt(record.batch, position, part)
      if entry.s == 1 and #entries > 0 then
        redis.call('LPUSH', key, string.format('%d', position))
        break
      end
      entry.n = entry.n + 1
      write_attempt(record.batch, position, entry)
      table.insert(ranges, position)
      table.insert(ranges, position + 1)
      table.insert(entries, {position, entry.a, entry.n, entry.d or false, entry.c or false})
      if entry.s == 1 then break end
    end
  end
  if #entries == 0 then return nil end
  return {p = part, k = 'b', r = ranges, e = entries}
end

local function claim_fresh(record, part, count)
  local key = K.fresh(record.batch, part)
  local ranges, taken = {}, 0
  while taken < count do
    local range = redis.call('LPOP', key)
    if not range then break end
    local low, high = string.match(range, '^(%d+):(%d+)$')
    low, high = tonumber(low), tonumber(high)
    local stop = math.min(high, low + count - taken)
    if stop < high then redis.call('LPUSH', key, string.format('%d:%d', stop, high)) end
    if #ranges > 0 and ranges[#ranges] == low then
      ranges[#ranges] = stop
    else
      table.insert(ranges, low)
      table.insert(ranges, stop)
    end
    taken = taken + stop - low
  end
  if taken == 0 then return nil end
  return {p = part, k = 'f', r = ranges}
end

local function claim_size(record, part, queue, count)
  local prefetch = tonumber(record.parts[part + 1][8])
  if prefetch then count = math.min(count, prefetch) end
  local live = tonumber(redis.call('HGET', K.record(record.batch), 'ql:' .. queue)) or 1
  local share = math.floor(record.claimable[part] / (2 * math.max(1, live)))
  return math.max(1, math.min(count, 512, share))
end

-- Returns a claim, or nil and the reason why there is none.
local function claim_items(record, token, queue, count)
  if record.cancel == 1 then return nil, 'cancelled' end
  promote_due(record)
  local paused = paused_parts(record)
  if paused.all then return nil, 'paused' end
  local reason = 'empty'
  for part = 0, #record.parts - 1 do
    if part_queue(record.parts[part + 1]) == queue and record.claimable[part] > 0 then
      if paused[part] then
        reason = 'paused'
      else
        -- (cache look-up and parking behind a leader belong here)
        local size = claim_size(record, part, queue, count)
        local claim = claim_back(record, part, size) or claim_fresh(record, part, size)
        if claim then
          local taken = count_range(claim.r)
          record.claimable[part] = record.claimable[part] - taken
          record.pending = record.pending - taken
          record.running = record.running + taken
          if record.started == 0 then record.started = now end
          redis.call('HSET', K.running(record.batch), token, cmsgpack.pack({p = claim.p, k = claim.k, r = claim.r, t = now}))
          return claim
        end
      end
    end
  end
  return nil, reason
end

-- The chunks that a claim needs and the lane does not have: {number, blob}, and calls kept out of line.
local function chunks_of(batch, claim, have)
  local known, chunks = {}, {}
  for _, number in ipairs(have or {}) do known[number] = true end
  for at = 1, #claim.r, 2 do
    for number = math.floor(claim.r[at] / 256), math.floor((claim.r[at + 1] - 1) / 256) do
      if not known[number] then
        known[number] = true
        table.insert(chunks, {number, redis.call('HGET', K.items(batch), number)})
      end
    end
  end
  return chunks
end
