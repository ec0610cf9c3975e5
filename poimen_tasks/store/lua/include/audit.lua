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
  local limit, length, id = tonumber(request.unsealed) or 100000, 0, nil
  if not meta[2] then length = redis.call('XLEN', K.audit) end
  -- By XADD itself, so that whoever may only add entries needs no right to trim.
  if length >= limit + math.min(1000, limit) then
    id = redis.call('XADD', K.audit, 'MAXLEN', limit, '*', 't', kind, 'h', cmsgpack.pack(header), 'd', payload or '')
    redis.call('HINCRBY', K.audit_meta, 'dropped', length + 1 - limit)
  else
    id = redis.call('XADD', K.audit, '*', 't', kind, 'h', cmsgpack.pack(header), 'd', payload or '')
  end
  return id
end
