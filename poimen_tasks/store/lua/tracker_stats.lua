#!lua flags=allow-oom
-- tracker_stats: how many tasks a tracker has in each status; of one moment, and quick however many there are. It changes
-- nothing and keeps no reply.
-- Request: tracker, ranks (of how many statuses). Reply: {counts (by rank), changes, created, updated (nil: never)}
--@include prelude
--@include tracker
local counts = {}
for rank = 0, request.ranks - 1 do
  local low, high = string.format('%.0f', rank * PLACES), string.format('(%.0f', (rank + 1) * PLACES)
  counts[rank + 1] = redis.call('ZCOUNT', K.tracker_states(request.tracker), low, high)
end
local meta = redis.call('HMGET', K.tracker_meta(request.tracker), 'changes', 'created', 'updated')
return cmsgpack.pack({
  counts = counts, changes = tonumber(meta[1] or 0), created = tonumber(meta[2] or nil), updated = tonumber(meta[3] or nil),
})
