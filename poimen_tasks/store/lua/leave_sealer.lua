#!lua flags=allow-oom
-- leave_sealer: the registered sealer stops in order, so that the next one need not wait; what is not sealed stays in the
-- stream. With `forget` there will be none for now, and the stream is bounded again; a living one refuses.
-- Request: token (empty: nobody's), forget. Reply: {left}
--@include sealer
local meta = read_meta()
if request.forget then
  if is_alive(meta) and meta.sealer ~= request.token then
    return refuse('SEALER', meta.who .. '\t' .. string.format('%.3f', meta.since))
  end
  redis.call('HDEL', K.audit_meta, 'sealer', 'who', 'home', 'since', 'beat', 'lease')
  return cmsgpack.pack({left = meta.sealer ~= nil})
end
local mine = meta.sealer == request.token
if mine then redis.call('HSET', K.audit_meta, 'beat', 0) end
return cmsgpack.pack({left = mine})
