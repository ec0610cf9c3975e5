#!lua flags=allow-oom
-- cache_list: what is cached, the most recently used first, without the values; it changes nothing and keeps no reply.
-- Request: before ('+inf' or '(score'), count (at most 500). Reply: rows of
--   {score, expiry, created, seconds, last, hits, bytes, labels}
--@include prelude
local FIXED, SUM = 46, 40
local rows = {}
local found = redis.call('ZREVRANGEBYSCORE', K.cache_lru, request.before, '-inf', 'WITHSCORES', 'LIMIT', 0, math.min(request.count, 500))
for at = 1, #found, 2 do
  local key = K.cache_entry(found[at])
  local head = redis.call('GETRANGE', key, 0, FIXED - 1)
  if #head == FIXED then
    local expiry, created, seconds, _, last, hits, length = struct.unpack('>dddddI4I2', head)
    local first = FIXED + SUM
    local good, labels = pcall(cmsgpack.unpack, redis.call('GETRANGE', key, first, first + length - 1))
    local bytes = redis.call('STRLEN', key) - first - length
    if not good or (expiry > 0 and expiry <= now) then labels = false end
    table.insert(rows, {tonumber(found[at + 1]), expiry, created, seconds, last, hits, bytes, labels})
  end
end
return cmsgpack.pack(rows)
