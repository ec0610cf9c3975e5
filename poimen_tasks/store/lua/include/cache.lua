-- The result cache. An entry is one string, so that a hit reads one key and writes 12 bytes of it:
--   expiry d (0: never)   created d   seconds d (what computing took)   stamp d (the cache's clock at the put)
--   last d (of the last hit)   hits I4   length of the labels I2   sha1 of what follows, 40 hex digits   labels   value
-- Labels are a msgpack list {activity, task, input hash, model, tags}. The value is an encoded value of the codec.
-- What an entry may be used for is decided by clocks: a scope's stamp hides every entry of it that was put before.
-- The least recently used goes first; accounting lives here, no lifetime of the server's is involved.
--@include audit
local HEADER, FIXED, SUM = '>dddddI4I2', 46, 40

-- Written as a value, not as a growth: `cache_hit` counts on without telling the log on disk.
local function cache_clock(count)
  local clock = (tonumber(redis.call('HGET', K.cache_meta, 'clock')) or 0) + (count or 1)
  redis.call('HSET', K.cache_meta, 'clock', string.format('%d', clock))
  return clock
end

local function read_entry(key)
  local stored = redis.call('GET', K.cache_entry(key))
  if not stored then return nil end
  if #stored < FIXED + SUM then return {bad = true, size = #stored, labels = {''}} end
  local expiry, created, seconds, stamp, last, hits, length = struct.unpack(HEADER, stored)
  local first = FIXED + SUM + length + 1
  local good, labels = pcall(cmsgpack.unpack, string.sub(stored, FIXED + SUM + 1, first - 1))
  if not good or type(labels) ~= 'table' then return {bad = true, size = #stored, labels = {''}} end
  local entry = {
    expiry = expiry, created = created, seconds = seconds, stamp = stamp, last = last, hits = hits, size = #stored - first + 1,
    sum = string.sub(stored, FIXED + 1, FIXED + SUM), labels = labels, value = string.sub(stored, first),
  }
  entry.bad = redis.sha1hex(string.sub(stored, FIXED + SUM + 1)) ~= entry.sum
  return entry
end

-- The scopes that can hide an entry: all, its activity, task, model and tags, and the key itself.
local function scopes_of(key, labels)
  local scopes = {'*', 'a:' .. labels[1]}
  if labels[2] and labels[2] ~= '' then table.insert(scopes, 't:' .. labels[2]) end
  if labels[4] and labels[4] ~= '' then table.insert(scopes, 'm:' .. labels[4]) end
  for _, tag in ipairs(labels[5] or {}) do table.insert(scopes, 'g:' .. tag) end
  table.insert(scopes, 'k:' .. key)
  return scopes
end

-- True when one of these scopes was invalidated after this clock.
local function is_hidden(scopes, stamp)
  for _, clock in ipairs(redis.call('HMGET', K.cache_stamps, unpack(scopes))) do
    if clock and tonumber(clock) > stamp then return true end
  end
  return false
end

-- Counters of many calls, written once: `tally(t, activity, name, n)` then `write_tally(t)`.
local function tally(counts, activity, name, n)
  local own = counts[activity]
  if not own then own = {}; counts[activity] = own end
  own[name] = (own[name] or 0) + n
end

local function write_tally(counts)
  for activity, own in pairs(counts) do
    redis.call('SADD', K.cache_activities, activity)
    for name, n in pairs(own) do
      -- A counter that is full stays as it is: no call fails for it.
      if n ~= 0 then redis.pcall('HINCRBY', K.cache_stats(activity), name, string.format('%d', n)) end
    end
  end
end

local function remove_entry(key, entry, counts)
  redis.call('DEL', K.cache_entry(key))
  redis.call('ZREM', K.cache_lru, key)
  redis.call('ZREM', K.cache_expiry, key)
  local scopes = scopes_of(key, entry.labels)
  for at = 2, #scopes - 1 do redis.call('SREM', K.cache_index(scopes[at]), key) end
  redis.call('HINCRBY', K.cache_meta, 'bytes', -entry.size)
  redis.call('HINCRBY', K.cache_meta, 'changes', 1)
  tally(counts, entry.labels[1], 'size', -1)
  tally(counts, entry.labels[1], 'bytes', -entry.size)
end

-- The entry if it may be served now; what may not be served is removed, and why is counted.
local function look_up(key, counts)
  local entry = read_entry(key)
  if not entry then return nil end
  local why = nil
  if entry.bad then why = 'corrupt'
  elseif entry.expiry > 0 and entry.expiry <= now then why = 'expired'
  elseif is_hidden(scopes_of(key, entry.labels), entry.stamp) then why = 'invalidated' end
  if not why then return entry end
  remove_entry(key, entry, counts)
  tally(counts, entry.labels[1], why, 1)
  if why == 'corrupt' then audit('cache.corrupted', {activity = entry.labels[1], hash = entry.labels[3]}) end
  return nil
end

-- A hit: this entry is the most recently used now. `clock` is one of `cache_clock`.
local function touch_entry(key, entry, clock, counts)
  redis.call('SETRANGE', K.cache_entry(key), 32, struct.pack('>dI4', now, math.min(entry.hits + 1, 4294967295)))
  redis.call('ZADD', K.cache_lru, clock, key)
  tally(counts, entry.labels[1], 'hits', 1)
  tally(counts, entry.labels[1], 'saved', math.floor(entry.seconds * 1000000))
end

-- Make room for one more entry of this size; at most 500 leave. Returns false when that is not enough.
local function make_room(size, limits, counts, gone)
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.cache_expiry, '-inf', now, 'LIMIT', 0, 100)) do
    local entry = read_entry(key)
    if entry then
      remove_entry(key, entry, counts)
      tally(counts, entry.labels[1], 'expired', 1)
    else
      redis.call('ZREM', K.cache_expiry, key)
    end
  end
  local bytes = tonumber(redis.call('HGET', K.cache_meta, 'bytes')) or 0
  local entries = redis.call('ZCARD', K.cache_lru)
  local removed = 0
  while (entries + 1 > limits.entries or bytes + size > limits.bytes) and entries > 0 do
    if removed >= 500 then return false end
    local key = redis.call('ZRANGE', K.cache_lru, 0, 0)[1]
    local entry = read_entry(key)
    if entry then
      remove_entry(key, entry, counts)
      bytes = bytes - entry.size
      local why = 'evictions'
      if is_hidden(scopes_of(key, entry.labels), entry.stamp) then why = 'invalidated' end
      tally(counts, entry.labels[1], why, 1)
      if why == 'evictions' then gone[entry.labels[1]] = (gone[entry.labels[1]] or 0) + 1 end
    else
      redis.call('ZREM', K.cache_lru, key)
    end
    entries, removed = entries - 1, removed + 1
  end
  return true
end

-- Put one value. `one`: k key, l labels, x ttl (0: never expires), s seconds, m most bytes or nil, c the clock when its
-- computation began or nil. Returns 'stored', 'refused' (too large) or 'stale' (invalidated since it began).
local function put_entry(one, value, limits, counts, gone)
  local activity, size = one.l[1], #value
  local scopes = scopes_of(one.k, one.l)
  if one.c and is_hidden(scopes, one.c) then
    tally(counts, activity, 'stale', 1)
    return 'stale'
  end
  local most = math.min(one.m or limits.bytes, limits.bytes)
  local before = nil
  if size <= most then before = read_entry(one.k) end
  if before then remove_entry(one.k, before, counts) end
  if size > most or not make_room(size, limits, counts, gone) then
    tally(counts, activity, 'refused', 1)
    return 'refused'
  end
  local clock = cache_clock()
  local labels = cmsgpack.pack(one.l)
  local expiry = one.x > 0 and now + one.x or 0
  local head = struct.pack(HEADER, expiry, now, one.s or 0, clock, 0, 0, #labels)
  redis.call('SET', K.cache_entry(one.k), head .. redis.sha1hex(labels .. value) .. labels .. value)
  redis.call('ZADD', K.cache_lru, clock, one.k)
  if expiry > 0 then redis.call('ZADD', K.cache_expiry, expiry, one.k) end
  for at = 2, #scopes - 1 do redis.call('SADD', K.cache_index(scopes[at]), one.k) end
  redis.call('HINCRBY', K.cache_meta, 'bytes', size)
  redis.call('HINCRBY', K.cache_meta, 'changes', 1)
  tally(counts, activity, 'size', 1)
  tally(counts, activity, 'bytes', size)
  tally(counts, activity, 'puts', 1)
  return 'stored'
end

-- The audit entries of puts and of what they drove out.
local function audit_puts(stored, gone)
  if #stored > 0 then audit('cache.put', {n = #stored}, cmsgpack.pack(stored)) end
  if next(gone) then audit('cache.evicted', {n = gone}) end
end
