#!lua flags=allow-oom
-- rewind_stream: a store that came back with an older state must not give ids a second time: its next id is made larger
-- than any on disk. Request: token, epoch, above (id). Reply: the fields of sealer.lua, and now, alive, length, added, last, oldest.
--@include sealer
local meta = read_meta()
local refused = fence(meta)
if refused then return refused end
if redis.call('EXISTS', K.audit) == 0 then
  redis.call('XGROUP', 'CREATE', K.audit, 'sealer', '$', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', K.audit, 'sealer')
end
local function parts(id)
  local first, second = string.match(id, '^(%d+)%-(%d+)$')
  return tonumber(first), tonumber(second)
end
local ms, seq = parts(request.above)
local last_ms, last_seq = parts(read_stream().last)
if last_ms < ms or (last_ms == ms and last_seq < seq) then redis.call('XSETID', K.audit, request.above) end
return cmsgpack.pack(describe(meta))
