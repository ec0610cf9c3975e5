-- A lane takes items. It serves one queue and takes from one partition at a time, skipping paused ones.
-- Order within a partition: what came back, then what was never claimed.
-- Of a partition whose results are cached, an item that the cache knows ends here without running, and one whose equal
-- runs already is parked behind it.
--@include finish
--@include backlog

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

local MOST_LOOKED, MOST_HIT_BYTES = 500, 262144

-- What becomes of an item: 'run' (with the key if it leads), 'hit' (with entry and key) or 'park' (with the key).
local function look_at(record, token, part, position, alone, counts)
  local key = digest_of(record.batch, position)
  if not key then
    tally(counts, part_activity(record.parts[part + 1]), 'uncacheable', 1)
    return 'run'
  end
  local entry = look_up(key, counts)
  if entry then return 'hit', entry, key end
  local flight = read_flight(key)
  if is_led(flight) and not alone then return 'park', nil, key end
  tally(counts, part_activity(record.parts[part + 1]), 'misses', 1)
  if alone or flight.n >= MOST_FAILED then return 'run' end
  lead(key, flight, token, record.batch, position)
  return 'run', nil, key
end

-- The items of a piece that have to run, the keys that they lead, and how many it looked at; the others are settled
-- or parked.
local function sort_piece(record, token, piece, wanted, counts, hits)
  local positions, entries, keys, looked = {}, {}, {}, 0
  for at = 1, #piece.r, 2 do
    for position = piece.r[at], piece.r[at + 1] - 1 do
      if #positions >= wanted or hits.bytes >= MOST_HIT_BYTES then break end
      looked = looked + 1
      local come_back = piece.e and piece.e[looked]
      local attempt = come_back and read_attempt(record.batch, position, piece.p) or {}
      local what, entry, key = 'run', nil, nil
      -- A retry with other arguments is another call than the one that the key was made of.
      if not attempt.c then what, entry, key = look_at(record, token, piece.p, position, attempt.u == 1, counts) end
      if what == 'run' then
        table.insert(positions, position)
        table.insert(entries, come_back)
        table.insert(keys, key or UNCACHED)
      elseif what == 'park' then
        park(record, position, piece.p, key)
      else
        table.insert(hits, {position, entry, key})
        hits.bytes = hits.bytes + entry.size
        if come_back then redis.call('HDEL', K.attempts(record.batch), position) end
      end
    end
  end
  return positions, piece.e and entries, keys, looked
end

-- Put back the items of a piece behind the first `looked`.
local function put_rest_back(record, piece, looked)
  if piece.k == 'b' then
    for at = #piece.e, looked + 1, -1 do
      redis.call('LPUSH', K.back(record.batch, piece.p), string.format('%d', piece.e[at][1]))
    end
    return
  end
  local rest, seen = {}, 0
  for at = 1, #piece.r, 2 do
    local low, high = piece.r[at], piece.r[at + 1]
    local skip = math.max(0, math.min(high - low, looked - seen))
    seen = seen + high - low
    if low + skip < high then table.insert(rest, string.format('%d:%d', low + skip, high)) end
  end
  for at = #rest, 1, -1 do redis.call('LPUSH', K.fresh(record.batch, piece.p), rest[at]) end
end

local function settle_hits(record, part, hits, counts)
  if #hits == 0 then return end
  table.sort(hits, function(one, other) return one[1] < other[1] end)
  local positions, values, clock = {}, {}, cache_clock(#hits) - #hits
  for at, hit in ipairs(hits) do
    positions[at], values[at] = hit[1], hit[2].value
    touch_entry(hit[3], hit[2], clock + at, counts)
  end
  record.pending = record.pending - #hits
  record.ok = record.ok + #hits
  record.cached = record.cached + #hits
  count_ended(record, part, 'ok', #hits)
  local ranges = write_cached(record, positions, values)
  audit_batch('item.finished', record, naming(record, positions, {
    r = ranges, ok = #hits, cached = #hits, activity = part_activity(record.parts[part + 1]),
  }))
end

-- A claim from a partition whose results are cached. Looks at no more than 500 items, or a quarter megabyte of hits.
-- Returns a claim, or nil and whether there is more to look at.
local function claim_cached(record, token, part, size)
  local counts, hits, looked, claim = {}, {bytes = 0}, 0, nil
  local before = record.waiting
  while not claim and looked < MOST_LOOKED and hits.bytes < MOST_HIT_BYTES do
    local most = MOST_LOOKED - looked
    local piece = claim_back(record, part, math.min(size, most)) or claim_fresh(record, part, math.min(math.max(size, 64), most))
    if not piece then break end
    local positions, entries, keys, seen = sort_piece(record, token, piece, size, counts, hits)
    put_rest_back(record, piece, seen)
    looked = looked + seen
    if #positions > 0 then
      claim = {p = part, k = piece.k, r = ranges_of(positions), e = entries or nil, d = table.concat(keys)}
    end
  end
  local parked = record.waiting - before
  record.claimable[part] = record.claimable[part] - #hits - parked
  record.pending = record.pending - parked
  settle_hits(record, part, hits, counts)
  write_tally(counts)
  return claim, record.claimable[part] > 0
end

-- Returns a claim, or nil and the reason why there is none: 'again' when there is more to look at.
local function claim_items(record, token, queue, count)
  if record.cancel == 1 then return nil, 'cancelled' end
  if has_backlog(request.hard) then return nil, 'backlog' end
  promote_due(record)
  local paused = paused_parts(record)
  if paused.all then return nil, 'paused' end
  local reason = 'empty'
  for part = 0, #record.parts - 1 do
    if part_queue(record.parts[part + 1]) == queue and record.claimable[part] > 0 then
      local room = not paused[part] and ramp_room(record, part)
      if paused[part] then
        reason = 'paused'
      elseif room and room < 1 then
        reason = 'ramped'
      else
        local size, claim, more = claim_size(record, part, queue, math.min(count, room or count)), nil, false
        if part_cached(record.parts[part + 1]) then
          claim, more = claim_cached(record, token, part, size)
        else
          claim = claim_back(record, part, size) or claim_fresh(record, part, size)
        end
        if not claim and more then return nil, 'again' end
        if claim then
          local taken = count_range(claim.r)
          record.claimable[part] = record.claimable[part] - taken
          record.pending = record.pending - taken
          record.running = record.running + taken
          if room then take_room(ramp_scopes(record, part), taken) end
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
