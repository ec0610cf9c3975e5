-- What a body that runs is told when it asks: {cancelled, revoked, stop, mine (its lane holds the item)}.
-- Request: b batch, position, token of its lane.
--@include revoking
local function tell_item()
  local record = load_record(request.b)
  local stored = record and redis.call('HGET', K.running(request.b), request.token)
  local holding = stored and cmsgpack.unpack(stored)
  local told = {cancelled = false, revoked = false, stop = false, mine = false}
  if not record then return told end
  told.cancelled = record.cancel == 1
  told.revoked = read_marks(record)[string.format('%d', request.position)] ~= nil
  if holding and holds(holding.r, request.position) then
    told.mine = true
    told.stop = (is_stopping(record, holding.p))
  end
  return told
end
