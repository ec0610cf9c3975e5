-- One audit entry, in the same step as the change it tells of.
-- Fields of an entry, always these three so that the stream packs them tightly:
--   t  type, `noun.verb`      h  header, msgpack map      d  payload, as the caller gave it
-- While no sealer is registered the stream is bounded, and what was dropped is counted.
-- Returns the entry's stream id.
--@include prelude
local function audit(kind, header, payload)
  local meta = redis.call('HMGET', K.audit_meta, 'epoch', 'sealer')
  if not meta[1] then
    redis.call('HSET', K.audit_meta, 'epoch', redis.sha1hex(owner .. clock[1] .. clock[2]))
  end
  local id = redis.call('XADD', K.audit, '*', 't', kind, 'h', cmsgpack.pack(header), 'd', payload or '')
  local limit = tonumber(request.unsealed) or 100000
  if not meta[2] and redis.call('XLEN', K.audit) > limit + math.min(1000, limit) then
    redis.call('HINCRBY', K.audit_meta, 'dropped', redis.call('XTRIM', K.audit, 'MAXLEN', limit))
  end
  return id
end
