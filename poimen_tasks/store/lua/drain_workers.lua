#!lua flags=allow-oom
-- drain_workers: workers are asked to leave: each hears it with its next tick, also when that is after an outage. Workers
-- that start later are not meant. Request: workers (names as they tick, at most 500), actor, reason. Reply: those that are there
--@include once
--@include audit
if once_reply then return once_reply end
--@sound
local asked = {}
for _, worker in ipairs(request.workers) do
  if redis.call('HEXISTS', K.workers, worker) == 1 then
    table.insert(asked, worker)
    if redis.call('HSETNX', K.drains, worker, cmsgpack.pack({a = request.actor, r = request.reason, t = now})) == 1 then
      audit('worker.draining', {worker = worker, a = request.actor, reason = request.reason})
    end
  end
end
return answer(asked)
