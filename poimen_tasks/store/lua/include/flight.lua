-- Single-flight: of equal calls one computes (it leads), the others wait for its result (they follow).
-- A flight is a hash:
--   o owner: a lane's token, or a caller's      c the cache's clock when it began      n how many leaders failed
--   b batch and p position of a leading item    d deadline of a leader that is no lane: it renews its own lease
--   w 1: callers wait by asking again           e the clock at which its result came (`flight_value` has it)
-- A flight without an owner is vacant: whoever asks next leads. Followers are items, parked in their batch (`waiting`);
-- a list entry counts only while `parked` of its batch says so, so cancelling a batch need not look for it.
-- After two failed leaders everybody computes for himself.
-- A plain call of a task follows too: its whole message waits in `waiting_calls`, a list entry of one value has its id.
-- Released, it is published by the script's caller, and again by the keeper until it begins.
--@include attempts
--@include cache
local MOST_FAILED, MOST_LANDED_BYTES = 2, 1048576
local UNCACHED = string.rep('\0', 32)

-- Every batch that this script has in hand, so that none is loaded twice.
local records = {}
local function record_of(batch)
  if not records[batch] then records[batch] = load_record(batch) end
  return records[batch]
end

-- End, or save, every batch but the caller's own; its tickets join those of the reply.
local function close_others(own, tickets)
  for batch, record in pairs(records) do
    if batch ~= own then
      for _, ticket in ipairs(end_or_go_on(record)) do table.insert(tickets, ticket) end
    end
  end
end

-- Plain calls that this script released: {id, message}.
local released_calls = {}
local function release_call(id)
  local message = redis.call('HGET', K.waiting_calls, id)
  if not message then return false end
  -- Its queue may be long, and every copy makes it longer.
  local tries = redis.call('HINCRBY', K.waiting_tries, id, 1)
  redis.call('ZADD', K.waiting_due, now + (tonumber(request.overdue) or 2) * math.min(2 ^ (tries - 1), 256), id)
  table.insert(released_calls, {id, message})
  return true
end

local digests = {}
-- The cache key of an item, or nil when it has none.
local function digest_of(batch, position)
  local number = math.floor(position / 256)
  local name = batch .. '/' .. number
  if digests[name] == nil then digests[name] = redis.call('HGET', K.digests(batch), number) or '' end
  local first = position % 256 * 32 + 1
  local key = string.sub(digests[name], first, first + 31)
  if #key < 32 or key == UNCACHED then return nil end
  return key
end

local function read_flight(key)
  local values = redis.call('HMGET', K.flight(key), 'o', 'c', 'n', 'b', 'p', 'd', 'w', 'e')
  return {
    o = values[1] or nil, c = tonumber(values[2]), n = tonumber(values[3]) or 0, b = values[4] or nil,
    p = tonumber(values[5]), d = tonumber(values[6]), w = values[7], e = tonumber(values[8]),
  }
end

local function is_led(flight) return flight.o and (not flight.d or flight.d > now) end

local function lead(key, flight, owner, batch, position, lease)
  local clock = cache_clock()
  redis.call('HDEL', K.flight(key), 'b', 'p', 'd', 'e')
  redis.call('HSET', K.flight(key), 'o', owner, 'c', clock, 'n', flight.n)
  if batch then
    redis.call('HSET', K.flight(key), 'b', batch, 'p', position)
    redis.call('ZREM', K.flight_due, key)
  else
    redis.call('HSET', K.flight(key), 'd', now + lease)
    redis.call('ZADD', K.flight_due, now + lease, key)
  end
  redis.call('ZADD', K.flights, clock, key)
  return clock
end

local function forget_flight(key)
  redis.call('DEL', K.flight(key), K.followers(key), K.flight_value(key))
  redis.call('ZREM', K.flights, key)
  redis.call('ZREM', K.flight_due, key)
end

local function park(record, position, part, key)
  redis.call('HSET', K.parked(record.batch), position, key)
  redis.call('RPUSH', K.followers(key), cmsgpack.pack({record.batch, position, part}))
  record.waiting = record.waiting + 1
end

-- The next follower that still waits: its record, position, partition; of a plain call only `true`, it is released.
-- Looks at no more than 500.
local function next_follower(key)
  for _ = 1, 500 do
    local packed = redis.call('LPOP', K.followers(key))
    if not packed then return nil end
    local batch, position, part = unpack(cmsgpack.unpack(packed))
    if not position then
      if release_call(batch) then return true end
    elseif redis.call('HGET', K.parked(batch), position) == key then
      redis.call('HDEL', K.parked(batch), position)
      local record = record_of(batch)
      if record then
        record.waiting = record.waiting - 1
        return record, position, part
      end
    end
  end
  return nil
end

-- A follower becomes claimable again; `alone`: it computes for itself whatever others do.
local function unpark(record, position, part, alone)
  local entry = read_attempt(record.batch, position, part)
  entry.d = entry.d or now
  if alone then entry.u = 1 end
  write_attempt(record.batch, position, entry)
  redis.call('RPUSH', K.back(record.batch, part), string.format('%d', position))
  record.pending = record.pending + 1
  record.claimable[part] = record.claimable[part] + 1
  record.came_back = true
end

-- Whether an item is paused, so that it cannot lead.
local pauses = {}
local function is_held(record, part)
  pauses[record.batch] = pauses[record.batch] or paused_parts(record)
  return pauses[record.batch][part] or false
end

-- The next follower that can lead is claimable again, and those before it that are paused: they wait in their batches.
local function let_one_lead(key)
  for _ = 1, 500 do
    local record, position, part = next_follower(key)
    if not position then return record end
    unpark(record, position, part, false)
    if not is_held(record, part) then return record end
  end
  return nil
end

-- The flight has no leader: the first follower may lead, or everybody goes on alone. Returns how many were released.
-- Callers that wait by asking are not known by name: for them it is kept a while, unless it was (`late`).
local function pass_on(key, flight, late)
  if flight.n >= MOST_FAILED then
    for released = 0, 499 do
      local record, position, part = next_follower(key)
      if not record then
        if late or not flight.w then
          forget_flight(key)
        else
          redis.call('HDEL', K.flight(key), 'o', 'b', 'p', 'd')
          redis.call('HSET', K.flight(key), 'n', flight.n)
          redis.call('ZADD', K.flight_due, now + 30, key)
        end
        return released
      end
      if position then unpark(record, position, part, true) end
    end
    redis.call('HSET', K.flight(key), 'n', flight.n)
    redis.call('HDEL', K.flight(key), 'o', 'b', 'p', 'd')
    redis.call('ZADD', K.flight_due, now, key)
    return 500
  end
  local record = let_one_lead(key)
  if not record and (late or not flight.w) and redis.call('EXISTS', K.followers(key)) == 0 then
    forget_flight(key)
    return 0
  end
  redis.call('HDEL', K.flight(key), 'o', 'b', 'p', 'd')
  redis.call('HSET', K.flight(key), 'n', flight.n)
  -- Whoever was to lead may be cancelled, paused, or far from a slot: then another one is let go.
  redis.call('ZADD', K.flight_due, now + 1, key)
  return record and 1 or 0
end

-- Give up to 500 followers the value, of a large one as many as fit a megabyte: each has a copy of it in its outcome.
-- Returns how many got it, and how many are plain calls, which come and fetch it; the rest is done by `settle_flight`.
local function complete_followers(key, value, counts)
  local by_batch, parts, order, done, calls = {}, {}, {}, 0, 0
  local most = math.max(1, math.min(500, math.floor(MOST_LANDED_BYTES / #value)))
  while done < most do
    local record, position, part = next_follower(key)
    if not record then break end
    done = done + 1
    if position then
      if not by_batch[record.batch] then
        by_batch[record.batch], parts[record.batch] = {}, part -- equal calls of a batch are of one partition, or of two of one task
        table.insert(order, record.batch)
      end
      table.insert(by_batch[record.batch], position)
    else
      calls = calls + 1
    end
  end
  for _, batch in ipairs(order) do
    local record, positions, values = record_of(batch), by_batch[batch], {}
    table.sort(positions)
    for at, position in ipairs(positions) do
      values[at] = value
      redis.call('HDEL', K.attempts(batch), position)
    end
    record.ok = record.ok + #positions
    record.cached = record.cached + #positions
    count_ended(record, parts[batch], 'ok', #positions)
    local ranges = write_cached(record, positions, values)
    local header = {r = ranges, ok = #positions, cached = #positions, coalesced = true}
    audit_batch('item.finished', record, naming(record, positions, header))
  end
  return done - calls, calls
end

-- The result is there: followers get it, 500 at a time. Asking callers find it in `flight_value` for a while.
local function land(key, flight, value, activity, counts)
  local done, calls = complete_followers(key, value, counts)
  if done > 0 then tally(counts, activity, 'coalesced', done) end
  local more = redis.call('EXISTS', K.followers(key)) == 1
  if not more and not flight.w and calls == 0 then
    forget_flight(key)
    return
  end
  redis.call('SET', K.flight_value(key), cmsgpack.pack({activity, value}), 'EX', more and 86400 or 30)
  redis.call('HDEL', K.flight(key), 'o', 'b', 'p', 'd')
  redis.call('HSET', K.flight(key), 'e', cache_clock())
  redis.call('ZREM', K.flights, key)
  redis.call('ZADD', K.flight_due, more and now or now + 30, key)
end

-- The leader leaves without a result. `failed`: it tried and could not.
local function abandon(key, owner, batch, position, failed)
  local flight = read_flight(key)
  if flight.o ~= owner or flight.b ~= batch or flight.p ~= position then return end
  if failed then flight.n = flight.n + 1 end
  redis.call('ZREM', K.flights, key)
  pass_on(key, flight)
end

-- A leader has the result. `one` as in put_entry. Returns 'stored', 'refused', 'stale' or 'fenced' (it leads no more).
local function finish_flight(one, value, owner, batch, position, limits, counts, gone)
  local flight = read_flight(one.k)
  if flight.o ~= owner or flight.b ~= batch or flight.p ~= position then
    tally(counts, one.l[1], 'fenced', 1)
    return 'fenced'
  end
  one.c = flight.c
  local put = put_entry(one, value, limits, counts, gone)
  if put == 'stale' then
    redis.call('ZREM', K.flights, one.k)
    flight.n = 0
    -- They asked before the invalidation or after it: each must be looked at anew.
    for _ = 1, 500 do
      local record, at, part = next_follower(one.k)
      if not record then break end
      if at then unpark(record, at, part, false) end
    end
    pass_on(one.k, flight)
  else
    land(one.k, flight, value, one.l[1], counts)
  end
  return put
end
