#!lua flags=allow-oom
-- cache_sweep: remove up to 500 entries that are hidden or expired, and forget stamps that hide nothing any more.
-- Sending it again goes on with the next ones; it keeps no reply. Request: cursor (any number). Reply: {removed, left (true: call again)}
--@include prelude
--@include cache
local counts, removed, left = {}, 0, false
local function drop(key, why, clock)
  local entry = read_entry(key)
  if not entry or (clock and entry.stamp >= clock) then return end
  remove_entry(key, entry, counts)
  tally(counts, entry.labels[1], why, 1)
  removed = removed + 1
end

for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.cache_expiry, '-inf', now, 'LIMIT', 0, 250)) do
  drop(key, 'expired')
  redis.call('ZREM', K.cache_expiry, key)
end
local sweep = redis.call('ZRANGE', K.cache_sweeps, 0, 0, 'WITHSCORES')
if sweep[1] then
  local clock, over = tonumber(sweep[2]), false
  if sweep[1] == '*' then
    local keys = redis.call('ZRANGEBYSCORE', K.cache_lru, '-inf', clock, 'LIMIT', 0, 250)
    for _, key in ipairs(keys) do drop(key, 'invalidated', clock) end
    over = #keys < 250
  else
    local scope, old = string.match(sweep[1], '^(.*)\t(%d+)$')
    for _, key in ipairs(redis.call('SPOP', K.cache_old(old), 250)) do drop(key, 'invalidated', clock) end
    over = redis.call('EXISTS', K.cache_old(old)) == 0
  end
  if over then redis.call('ZREM', K.cache_sweeps, sweep[1]) end
end
-- A stamp is needed by what is still hidden, and by a computation that began before it.
if redis.call('EXISTS', K.cache_sweeps) == 0 and redis.call('EXISTS', K.cache_stamps) == 1 then
  local oldest = tonumber(redis.call('ZRANGE', K.flights, 0, 0, 'WITHSCORES')[2])
  if not oldest then
    redis.call('DEL', K.cache_stamps)
  else
    local fields = redis.call('HSCAN', K.cache_stamps, request.cursor or 0, 'COUNT', 200)[2]
    for at = 1, #fields, 2 do
      if tonumber(fields[at + 1]) < oldest then redis.call('HDEL', K.cache_stamps, fields[at]) end
    end
  end
end
left = removed >= 250 or redis.call('EXISTS', K.cache_sweeps) == 1
write_tally(counts)
return cmsgpack.pack({removed = removed, left = left})
