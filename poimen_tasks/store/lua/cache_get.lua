#!lua flags=allow-oom
-- cache_get: look up to 500 keys up at once, each a hit or a miss.
-- It keeps no reply: a call that is sent again counts its hits again, and changes nothing else.
-- Request: keys, activities (beside them, for counting misses), log (true: an audit entry for the hits). Reply: values, false for a miss.
--@include prelude
--@include cache
local counts, found, hits = {}, {}, 0
for at, key in ipairs(request.keys) do
  local entry = look_up(key, counts)
  if entry then
    hits = hits + 1
    found[at] = entry
  else
    tally(counts, request.activities[at], 'misses', 1)
  end
end
local values, told = {}, {}
if hits > 0 then
  local clock = cache_clock(hits) - hits
  for at, key in ipairs(request.keys) do
    if found[at] then
      clock = clock + 1
      touch_entry(key, found[at], clock, counts)
      values[at] = found[at].value
      table.insert(told, {found[at].labels[1], found[at].labels[3] or ''})
    else
      values[at] = false
    end
  end
else
  for at = 1, #request.keys do values[at] = false end
end
write_tally(counts)
if request.log and hits > 0 then audit('cache.hit', {n = hits}, cmsgpack.pack(told)) end
return cmsgpack.pack(values)
