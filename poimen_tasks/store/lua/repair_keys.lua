#!lua flags=allow-oom
-- repair_keys: remove what is left of a batch whose record is gone. Nothing happens while there is a record.
-- Request: b batch, parts (numbers of the partitions whose lists were found), actor. Reply: {removed}
--@include once
--@include audit
if once_reply then return once_reply end
if redis.call('EXISTS', K.record(request.b)) == 1 then return answer({removed = 0}) end
local keys = {}
for _, key in ipairs(BATCH_KEYS) do table.insert(keys, key(request.b)) end
for _, part in ipairs(request.parts) do
  table.insert(keys, K.fresh(request.b, part))
  table.insert(keys, K.back(request.b, part))
end
local removed = 0
for _, key in ipairs(keys) do
  removed = removed + redis.call('UNLINK', key)
end
removed = removed + redis.call('ZREM', K.batches, request.b)
removed = removed + redis.call('ZREM', K.open, request.b)
redis.call('ZREM', K.due, request.b)
redis.call('ZREM', K.hungry, request.b)
if removed > 0 then audit('keys.repaired', {b = request.b, removed = removed, a = request.actor}) end
return answer({removed = removed})
