#!lua
-- cache_put: store up to 100 values; what is least recently used makes room. A value that is too large is refused and counted.
-- Request: entries (see put_entry), limits {entries, bytes}, actor. ARGV[5..] the values. Reply: 'stored' | 'refused' | 'stale' of each.
--@include once
--@include cache
if once_reply then return once_reply end
if not layout then redis.call('SET', K.layout, LAYOUT) end
local counts, gone, results, stored = {}, {}, {}, {}
for at, one in ipairs(request.entries) do
  results[at] = put_entry(one, ARGV[4 + at], request.limits, counts, gone)
  if results[at] == 'stored' then table.insert(stored, {one.l[1], one.l[3] or '', #ARGV[4 + at]}) end
end
write_tally(counts)
audit_puts(stored, gone)
return answer(results)
