#!lua flags=allow-oom
-- cache_invalidate: hide what is cached under these scopes ('*', 'a:…', 't:…', 'm:…', 'g:…') and keys from now on, and
-- keep a computation under way from storing what it read before. What is hidden is removed by `cache_sweep`.
-- Request: scopes, keys, actor, reason. Reply: {hidden (entries at most), sweep (true: call cache_sweep)}
--@include once
--@include cache
if once_reply then return once_reply end
local clock, hidden, counts, sweep = cache_clock(), 0, {}, false
for _, scope in ipairs(request.scopes or {}) do
  redis.call('HSET', K.cache_stamps, scope, clock)
  if scope == '*' then
    hidden = redis.call('ZCARD', K.cache_lru)
  elseif redis.call('EXISTS', K.cache_index(scope)) == 1 then
    local old = redis.call('HINCRBY', K.cache_meta, 'old', 1)
    redis.call('RENAME', K.cache_index(scope), K.cache_old(old))
    hidden = hidden + redis.call('SCARD', K.cache_old(old))
    redis.call('ZADD', K.cache_sweeps, clock, scope .. '\t' .. old)
    sweep = true
  end
  if scope == '*' then
    redis.call('ZADD', K.cache_sweeps, clock, '*')
    sweep = true
  end
end
for _, key in ipairs(request.keys or {}) do
  redis.call('HSET', K.cache_stamps, 'k:' .. key, clock)
  local entry = read_entry(key)
  if entry then
    hidden = hidden + 1
    remove_entry(key, entry, counts)
    tally(counts, entry.labels[1], 'invalidated', 1)
  end
end
write_tally(counts)
local kind = (request.scopes or {})[1] == '*' and 'cache.cleared' or 'cache.invalidated'
audit(kind, {scopes = request.scopes, keys = #(request.keys or {}), hidden = hidden, a = request.actor, reason = request.reason})
return answer({hidden = hidden, sweep = sweep})
