-- What a lane reports: outcomes, retries, items it gives back. Request fields under `f`:
--   r  flat ranges that have outcomes in ARGV[5]      ok failed cancelled skipped cached  how many of each
--   y  retries: {position, delay in seconds, attempts made, new call or false}
--   z  flat ranges of items that were asked to stop and did: their attempt does not count
--   g  flat ranges that were never started            n  {position, claim number} of items from the back list
--   c  results to cache, of items that lead: {position, labels, ttl, seconds, most bytes or nil}; the values are ARGV[7..]
--   m  details for the audit header                   late  true: this is the part that was found acceptable
-- ARGV[5] outcome blob, ARGV[6] audit payload.
--@include flight

local function give_back(record, holding, ranges)
  if holding.k == 'f' then
    for at = #ranges - 1, 1, -2 do
      redis.call('LPUSH', K.fresh(record.batch, holding.p), string.format('%d:%d', ranges[at], ranges[at + 1]))
    end
  else
    for at = #ranges - 1, 1, -2 do
      for position = ranges[at + 1] - 1, ranges[at], -1 do
        redis.call('LPUSH', K.back(record.batch, holding.p), string.format('%d', position))
      end
    end
  end
  local count = count_range(ranges)
  record.running = record.running - count
  record.pending = record.pending + count
  record.claimable[holding.p] = record.claimable[holding.p] + count
  record.came_back = true
  return count
end

-- Items of a partition leave running without a result: none of them leads any more.
local function abandon_ranges(record, token, part, ranges, failed)
  if not part_cached(record.parts[part + 1]) then return end
  for at = 1, #ranges, 2 do
    for position = ranges[at], ranges[at + 1] - 1 do
      local key = digest_of(record.batch, position)
      if key then abandon(key, token, record.batch, position, failed) end
    end
  end
end

-- What a lane holds and says nothing of when it claims again or leaves: its report was lost, and it must not leak.
local function give_back_rest(record, token)
  local stored = redis.call('HGET', K.running(record.batch), token)
  if not stored then return end
  local holding = cmsgpack.unpack(stored)
  give_back(record, holding, holding.r)
  abandon_ranges(record, token, holding.p, holding.r, false)
  redis.call('HDEL', K.running(record.batch), token)
end

-- Items that stopped when they were asked to. They are the first of their list; where nothing is paused (any more, or at
-- all: a body may raise `Paused` by itself) they wait a moment, so that they do not come back at once for ever.
local function stop_items(record, holding, ranges)
  if #ranges == 0 then return end
  if paused_parts(record)[holding.p] then
    give_back(record, holding, ranges)
  else
    for at = 1, #ranges, 2 do
      for position = ranges[at], ranges[at + 1] - 1 do
        local entry = read_attempt(record.batch, position, holding.p)
        entry.d = now + 1
        write_attempt(record.batch, position, entry)
        delay_item(record, position, holding.p, now + 1)
      end
    end
    record.running = record.running - count_range(ranges)
    set_due(record)
  end
  local header = {r = ranges, activity = part_activity(record.parts[holding.p + 1])}
  audit_batch('item.stopped', record, naming(record, positions_of(ranges), header))
end

local function retry_items(record, holding, retries)
  for _, retry in ipairs(retries) do
    local position, delay = retry[1], retry[2]
    local entry = read_attempt(record.batch, position, holding.p)
    entry.a = retry[3]
    if retry[4] then entry.c = retry[4] end
    entry.d = now + delay
    write_attempt(record.batch, position, entry)
    delay_item(record, position, holding.p, now + delay)
  end
  if #retries > 0 then
    if not record.parent then count_activity('r', part_activity(record.parts[holding.p + 1]), #retries) end
    record.running = record.running - #retries
    set_due(record)
  end
end

local function count_outcomes(record, part, finish)
  for _, status in ipairs(STATUSES) do
    local count = finish[status] or 0
    record[status] = record[status] + count
    count_ended(record, part, status, count)
  end
  record.cached = record.cached + (finish.cached or 0)
end

local function audit_finish(record, finish, late)
  local header = finish.m or {}
  header.r, header.late, header.cached = finish.r, late or nil, finish.cached
  header.ok, header.failed, header.cancelled, header.skipped = finish.ok, finish.failed, finish.cancelled, finish.skipped
  -- Ids are in the payload.
  if record.named >= 2 then header.t = naming(record, positions_of(finish.r), {}).t end
  audit_batch('item.finished', record, header, ARGV[6])
end

-- The positions of a lost lane's report that may still count: back in their list, without an outcome, and not claimed
-- again since. The list is searched from its head, which is where reaping puts them.
local function acceptable(record, finish)
  local claims, positions = {}, {}
  for _, pair in ipairs(finish.n or {}) do claims[pair[1]] = pair[2] end
  for at = 1, #finish.r, 2 do
    for position = finish.r[at], finish.r[at + 1] - 1 do
      local stored = redis.call('HGET', K.attempts(record.batch), position)
      local entry = stored and cmsgpack.unpack(stored)
      if entry and entry.n == (claims[position] or 0) and not has_outcome(record.batch, position)
        and redis.call('LPOS', K.back(record.batch, entry.p), position) then
        table.insert(positions, position)
      end
    end
  end
  return positions
end

-- Returns nil when written, or the list of positions that a late report may send again.
local function finish_late(record, finish)
  local positions = acceptable(record, finish)
  local count = count_range(finish.r)
  if not finish.late or #positions ~= count or count == 0 then return positions end
  local part = nil
  for _, position in ipairs(positions) do
    local entry = read_attempt(record.batch, position, 0)
    part = entry.p
    record.claimable[entry.p] = record.claimable[entry.p] - 1
    redis.call('LREM', K.back(record.batch, entry.p), 1, position)
    redis.call('HDEL', K.attempts(record.batch), position)
  end
  record.pending = record.pending - count
  count_outcomes(record, part, finish)
  write_outcomes(record, finish.r, ARGV[5])
  audit_finish(record, finish, true)
  return nil
end

-- Items of a partition that is cached ended: results are stored and go to their followers, others pass the lead on.
local function finish_cached(record, token, part, finish)
  if not part_cached(record.parts[part + 1]) then return end
  local counts, gone, stored, kept = {}, {}, {}, {}
  for at, result in ipairs(finish.c or {}) do
    local key = digest_of(record.batch, result[1])
    if key then
      local one = {k = key, l = result[2], x = result[3], s = result[4], m = result[5]}
      kept[result[1]] = true
      local put = finish_flight(one, ARGV[6 + at], token, record.batch, result[1], request.limits, counts, gone)
      if put == 'stored' then table.insert(stored, {one.l[1], one.l[3] or '', #ARGV[6 + at]}) end
    end
  end
  write_tally(counts)
  audit_puts(stored, gone)
  for at = 1, #(finish.r or {}), 2 do
    for position = finish.r[at], finish.r[at + 1] - 1 do
      local key = not kept[position] and digest_of(record.batch, position)
      if key then abandon(key, token, record.batch, position, true) end
    end
  end
end

-- Returns {late = positions} when the token does not hold these items, else {}.
local function finish_items(record, token, finish)
  local stored = redis.call('HGET', K.running(record.batch), token)
  local holding = stored and cmsgpack.unpack(stored) or nil
  local rest = holding and subtract(holding.r, finish.r or {})
  local retried = {}
  for _, retry in ipairs(finish.y or {}) do
    table.insert(retried, retry[1])
    table.insert(retried, retry[1] + 1)
  end
  rest = rest and subtract(rest, retried)
  rest = rest and subtract(rest, finish.g or {})
  rest = rest and subtract(rest, finish.z or {})
  if not rest then return {late = finish_late(record, finish)} end

  local count = count_range(finish.r or {})
  record.running = record.running - count
  count_outcomes(record, holding.p, finish)
  retry_items(record, holding, finish.y or {})
  if #(finish.g or {}) > 0 then give_back(record, holding, finish.g) end
  stop_items(record, holding, finish.z or {})
  if holding.k == 'b' and count > 0 then
    for at = 1, #finish.r, 2 do
      for position = finish.r[at], finish.r[at + 1] - 1 do redis.call('HDEL', K.attempts(record.batch), position) end
    end
  end
  if #rest == 0 then
    redis.call('HDEL', K.running(record.batch), token)
  else
    holding.r = rest
    redis.call('HSET', K.running(record.batch), token, cmsgpack.pack(holding))
  end
  if count > 0 then
    write_outcomes(record, finish.r, ARGV[5])
    audit_finish(record, finish)
  end
  if #retried > 0 then
    -- Without the changed calls: arguments do not belong into the log.
    local told, positions = {}, {}
    for at, retry in ipairs(finish.y) do
      told[at], positions[at] = {retry[1], retry[2], retry[3]}, retry[1]
    end
    audit_batch('item.retried', record, naming(record, positions, {y = told, worker = (finish.m or {}).worker}))
  end
  finish_cached(record, token, holding.p, finish)
  abandon_ranges(record, token, holding.p, retried, false)
  abandon_ranges(record, token, holding.p, finish.g or {}, false)
  abandon_ranges(record, token, holding.p, finish.z or {}, false)
  return {}
end
