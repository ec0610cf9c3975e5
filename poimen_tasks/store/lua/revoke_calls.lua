#!lua flags=allow-oom
-- revoke_calls: parked calls were revoked. They stay parked, and end when they come back, whichever worker gets them.
-- Request: ids (message ids, parked or not; at most 500). Reply: how many of them are parked.
--@include once
--@include audit
if once_reply then return once_reply end
local found = 0
for at = 1, math.min(500, #request.ids) do
  local id = request.ids[at]
  if redis.call('HEXISTS', K.paused_calls, id) == 1 then
    found = found + 1
    if redis.call('SADD', K.paused_revoked, id) == 1 then audit('call.revoking', {id = id}) end
  end
end
return answer({parked = found})
