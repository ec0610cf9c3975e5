#!lua flags=allow-oom
-- register_sealer: one sealer at a time may take entries off the audit stream; its token fences out whoever was before.
-- A living one refuses another, but for one of the same home: the file lock there says that the first is dead.
-- Request: token, who, home, lease seconds. Reply: the fields of sealer.lua, and now, alive, length, added, last, oldest.
--@include sealer
local meta = read_meta()
if meta.sealer ~= request.token and meta.home ~= request.home and is_alive(meta) then
  return refuse('SEALER', meta.who .. '\t' .. string.format('%.3f', meta.since))
end
if not layout then redis.call('SET', K.layout, LAYOUT) end
if not meta.epoch then redis.call('HSET', K.audit_meta, 'epoch', redis.sha1hex(owner .. clock[1] .. clock[2])) end
if meta.sealer ~= request.token then redis.call('HSET', K.audit_meta, 'since', now) end
redis.call('HSET', K.audit_meta,
  'sealer', request.token, 'who', request.who, 'home', request.home, 'lease', request.lease, 'beat', now)
return cmsgpack.pack(describe(read_meta()))
