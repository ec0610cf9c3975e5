#!lua flags=allow-oom
-- repair_cache: hold some of the cache's indexes, computations and counters against what is there; put them right when
-- asked. At most 500 names a call. What is judged by its name is exact at any time; sums are, while `changes` is the same.
-- Request: keys, members {scope, key}… of indexes, flights (keys with a computation, followers, or a place in its index),
--   calls (ids that are in no list of followers), sums {activity, entries, bytes}… with bytes (of all) and changes; repair, actor.
-- Reply: {sums = {activity, entries, bytes}… of the keys, gone = damaged keys, dead, unlisted, flights, calls,
--   drift = {activity, counted entries, found, counted bytes, found}…, bytes = {counted, found} or false, busy, good, repaired}
--@include once
--@include flight
if once_reply then return once_reply end
local reply = {sums = {}, gone = {}, dead = 0, unlisted = 0, flights = 0, calls = 0, drift = {}, bytes = false, busy = false, repaired = false}
local sums = {}

local function good_labels(key, packed)
  local good, labels = pcall(cmsgpack.unpack, packed)
  if not good or type(labels) ~= 'table' or type(labels[1]) ~= 'string' then return nil end
  return pcall(scopes_of, key, labels) and labels or nil
end

-- The entry without its value; `bad` when its head cannot be read.
local function read_head(digest)
  local key = K.cache_entry(digest)
  local size = redis.call('STRLEN', key)
  if size == 0 then return nil end
  if size < FIXED + SUM then return {bad = true} end
  local expiry, _, _, stamp, _, _, length = struct.unpack(HEADER, redis.call('GETRANGE', key, 0, FIXED - 1))
  local first = FIXED + SUM
  local labels = length > 0 and size >= first + length and good_labels(digest, redis.call('GETRANGE', key, first, first + length - 1))
  if not labels then return {bad = true} end
  return {expiry = expiry, stamp = stamp, labels = labels, size = size - first - length}
end

-- What is hidden need not be in an index: it is on its way out.
local function missing_scopes(key, entry)
  local missing, scopes = {}, scopes_of(key, entry.labels)
  if is_hidden(scopes, entry.stamp) then return missing end
  for at = 2, #scopes - 1 do
    if redis.call('SISMEMBER', K.cache_index(scopes[at]), key) == 0 then table.insert(missing, scopes[at]) end
  end
  return missing
end

local function judge_entry(key, entry, listed, due)
  local activity = entry.labels[1]
  sums[activity] = sums[activity] or {0, 0}
  sums[activity][1], sums[activity][2] = sums[activity][1] + 1, sums[activity][2] + entry.size
  local missing = missing_scopes(key, entry)
  if listed and (due or entry.expiry == 0) and #missing == 0 then return end
  reply.unlisted = reply.unlisted + 1
  if not request.repair then return end
  redis.call('ZADD', K.cache_lru, 'NX', entry.stamp, key)
  if entry.expiry > 0 then redis.call('ZADD', K.cache_expiry, entry.expiry, key) end
  for _, scope in ipairs(missing) do redis.call('SADD', K.cache_index(scope), key) end
end

local function judge_key(key)
  local listed, due = redis.call('ZSCORE', K.cache_lru, key), redis.call('ZSCORE', K.cache_expiry, key)
  local entry = read_head(key)
  if entry and not entry.bad then return judge_entry(key, entry, listed, due) end
  if entry then table.insert(reply.gone, key) elseif listed or due then reply.dead = reply.dead + 1 end
  if request.repair then
    redis.call('DEL', K.cache_entry(key))
    redis.call('ZREM', K.cache_lru, key)
    redis.call('ZREM', K.cache_expiry, key)
  end
end

local function judge_member(scope, key)
  if redis.call('EXISTS', K.cache_entry(key)) == 1 or redis.call('SISMEMBER', K.cache_index(scope), key) == 0 then return end
  reply.dead = reply.dead + 1
  if request.repair then redis.call('SREM', K.cache_index(scope), key) end
end

-- Somebody ends it: a lane that holds the item, or the keeper, which looks at it when it is due.
local function is_watched(key, flight)
  if redis.call('ZSCORE', K.flight_due, key) then return true end
  local run = flight.o and flight.b and not flight.d and redis.call('HGET', K.running(flight.b), flight.o)
  if not run then return false end
  local ranges = cmsgpack.unpack(run).r
  for at = 1, #ranges, 2 do
    if flight.p >= ranges[at] and flight.p < ranges[at + 1] then return true end
  end
  return false
end

local function judge_flight(key)
  local flight = read_flight(key)
  local there = redis.call('EXISTS', K.flight(key), K.followers(key)) > 0
  if there and not is_watched(key, flight) then
    reply.flights = reply.flights + 1
    if not request.repair then return end
    -- The keeper does the rest: a lease that is over, followers without a leader, a value that is not handed out.
    if not flight.d then
      redis.call('HDEL', K.flight(key), 'o', 'b', 'p')
      redis.call('ZREM', K.flights, key)
    end
    redis.call('ZADD', K.flight_due, flight.d or now, key)
  elseif not flight.o and redis.call('ZSCORE', K.flights, key) then
    reply.flights = reply.flights + 1
    if request.repair then redis.call('ZREM', K.flights, key) end
  end
end

local function judge_call(id)
  if redis.call('HEXISTS', K.waiting_calls, id) == 0 or redis.call('ZSCORE', K.waiting_due, id) then return end
  reply.calls = reply.calls + 1
  if request.repair then redis.call('ZADD', K.waiting_due, now, id) end
end

local function judge_sums()
  if (tonumber(redis.call('HGET', K.cache_meta, 'changes')) or 0) ~= request.changes then
    reply.busy = true
    return
  end
  local bytes = tonumber(redis.call('HGET', K.cache_meta, 'bytes')) or 0
  if bytes ~= request.bytes then
    reply.bytes = {bytes, request.bytes}
    if request.repair then redis.call('HSET', K.cache_meta, 'bytes', request.bytes) end
  end
  for _, row in ipairs(request.sums) do
    local fields = redis.call('HMGET', K.cache_stats(row[1]), 'size', 'bytes')
    local size, held = tonumber(fields[1]) or 0, tonumber(fields[2]) or 0
    if size ~= row[2] or held ~= row[3] then
      table.insert(reply.drift, {row[1], size, row[2], held, row[3]})
      if request.repair then
        redis.call('HSET', K.cache_stats(row[1]), 'size', row[2], 'bytes', row[3])
        redis.call('SADD', K.cache_activities, row[1])
      end
    end
  end
end

for _, key in ipairs(request.keys or {}) do judge_key(key) end
for _, pair in ipairs(request.members or {}) do judge_member(pair[1], pair[2]) end
for _, key in ipairs(request.flights or {}) do judge_flight(key) end
for _, id in ipairs(request.calls or {}) do judge_call(id) end
if request.sums then judge_sums() end
for activity, own in pairs(sums) do table.insert(reply.sums, {activity, own[1], own[2]}) end

reply.good = #reply.gone + reply.dead + reply.unlisted + reply.flights + reply.calls + #reply.drift == 0 and not reply.bytes
if request.repair and not reply.good then
  audit('cache.repaired', {
    damaged = #reply.gone, dead = reply.dead, unlisted = reply.unlisted, flights = reply.flights, calls = reply.calls,
    drift = reply.drift, bytes = reply.bytes or nil, a = request.actor,
  })
  reply.repaired = true
end
return answer(reply)
