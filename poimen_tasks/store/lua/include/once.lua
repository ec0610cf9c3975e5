-- Idempotence: a client library may send a command twice when a reply is lost.
-- The same sequence gets the stored reply and changes nothing; a lower one is refused.
--@include prelude
local once_key = K.owner(owner)
local once_seen = redis.call('GET', once_key)
local once_reply = nil
if once_seen then
  local colon = string.find(once_seen, ':', 1, true)
  local last = colon and tonumber(string.sub(once_seen, 1, colon - 1))
  if not last then return refuse('FOREIGN', once_key) end
  if sequence == last then
    once_reply = string.sub(once_seen, colon + 1)
  elseif sequence < last then
    return refuse('STALE', sequence .. ' is behind ' .. last)
  end
end

-- The server undoes nothing: where the audit entry cannot be written, because somebody put another type of key in the
-- stream's place, nothing is to be changed either. This is an error then, before the first write.
redis.call('XLEN', K.audit)
redis.call('HEXISTS', K.audit_meta, 'epoch')

-- Remember the reply long enough for any retry, and return it.
local function answer(reply)
  local packed = cmsgpack.pack(reply)
  redis.call('SET', once_key, string.format('%d:', sequence) .. packed, 'EX', 600)
  return packed
end
