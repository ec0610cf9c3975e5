#!lua flags=allow-oom
-- cache_hit: `cache_get` of one key, made lean: without the prelude, which takes longer than the look-up.
-- Anything but a plain hit or a plain miss (damaged, expired, invalidated) answers '' and changes nothing: ask `cache_get`.
-- It keeps no reply: a call that is sent again counts its hit again. What it notes goes neither to the log on disk nor to
-- replicas: a write for each look would cost as much as the look, and after a crash only the newest hits are forgotten.
-- KEYS[1] as everywhere   ARGV: root, key, activity   Reply: the value, or false for a miss
local root, key, activity = ARGV[1], ARGV[2], ARGV[3]
--@keys
local layout, stored = unpack(redis.call('MGET', K.layout, K.cache_entry(key)))
if layout and layout ~= LAYOUT then return redis.error_reply('POIMEN_LAYOUT ' .. layout) end
if not stored then
  if redis.call('HINCRBY', K.cache_stats(activity), 'misses', 1) == 1 then redis.call('SADD', K.cache_activities, activity) end
  return false
end
if #stored < 86 then return '' end
local expiry, _, seconds, stamp, _, hits, length = struct.unpack('>dddddI4I2', stored)
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local value = string.sub(stored, 87 + length)
if (expiry > 0 and expiry <= now) or redis.sha1hex(string.sub(stored, 87)) ~= string.sub(stored, 47, 86) then return '' end
-- Whether it is hidden takes its labels; while nothing is invalidated they need not be read.
if redis.call('EXISTS', K.cache_stamps) == 1 then
  local labels = cmsgpack.unpack(string.sub(stored, 87, 86 + length))
  local scopes = {'*', 'k:' .. key, 'a:' .. labels[1], 't:' .. labels[2], 'm:' .. labels[4]}
  for _, tag in ipairs(labels[5]) do scopes[#scopes + 1] = 'g:' .. tag end
  for _, hidden in ipairs(redis.call('HMGET', K.cache_stamps, unpack(scopes))) do
    if hidden and tonumber(hidden) > stamp then return '' end
  end
end
redis.set_repl(redis.REPL_NONE)
redis.call('SETRANGE', K.cache_entry(key), 32, struct.pack('>dI4', now, math.min(hits + 1, 4294967295)))
redis.call('ZADD', K.cache_lru, redis.call('HINCRBY', K.cache_meta, 'clock', 1), key)
redis.call('HINCRBY', K.cache_stats(activity), 'hits', 1)
-- A counter that is full stays as it is: no call fails for it.
if seconds > 0 then redis.pcall('HINCRBY', K.cache_stats(activity), 'saved', string.format('%d', seconds * 1000000)) end
return value
