#!lua flags=allow-oom
-- publish_sealed: what is on disk is said and leaves the stream. It is also the registered sealer's sign of life.
-- Refused as BEHIND when the last sealed entry is not in the stream: the store lost it, or somebody removed it, and the
-- sealer has to look at everything anew. Whole blocks of entries are freed, so the number of them matters little.
-- Request: token, epoch, was, size (lines), root, cursor (id), count (of entries since `was` that were still there),
--   look (true: the sealer did look at everything), removed (true: and found that the stream was), dropped_told,
--   vanished_told
-- Reply: the fields of sealer.lua, and now, alive, length, added, last, oldest; behind (entries that the stream is short of).
-- The same request again finds its work done. With `size` as it was it is a sign of life, and looks for what vanished.
--@include sealer
local meta = read_meta()
local refused = fence(meta)
if refused then return refused end
redis.call('HSET', K.audit_meta, 'beat', now)
if request.was ~= request.size and meta.sealed == request.size and meta.root == request.root then
  redis.call('HSET', K.audit_meta, 'dropped_told', request.dropped_told, 'vanished_told', request.vanished_told)
  return cmsgpack.pack(describe(read_meta()))
end
if meta.sealed ~= request.was then return refuse('MOVED', string.format('%d', meta.sealed)) end
if not request.look and request.count > 0 and #redis.call('XRANGE', K.audit, request.cursor, request.cursor) == 0 then
  return refuse('BEHIND', request.cursor)
end
local first, second = string.match(request.cursor, '^(%d+)%-(%d+)$')
redis.call('XTRIM', K.audit, 'MINID', string.format('%s-%.0f', first, tonumber(second) + 1))
local stream = read_stream()
local gone, drops = stream.added - stream.length, meta.dropped - meta.counted
local missing = gone - (meta.gone + request.count + drops)
redis.call('HSET', K.audit_meta,
  'sealed', request.size, 'root', request.root, 'cursor', request.cursor, 'gone', gone, 'counted', meta.dropped,
  'dropped_told', request.dropped_told, 'vanished_told', request.vanished_told)
if request.removed then redis.call('HSET', K.audit_meta, 'vanished_at', now) end
if missing > 0 then redis.call('HSET', K.audit_meta, 'vanished', meta.vanished + missing, 'vanished_at', now) end
local reply = describe(read_meta())
reply.behind = math.max(0, -missing)
return cmsgpack.pack(reply)
