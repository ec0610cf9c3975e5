#!lua flags=allow-oom
-- check_batch: hold the counters of a batch against its lists (invariant I3), and put them right when asked.
-- An open batch is in the list of them, too.
-- Request: b batch, repair. Reply: {counted, found, listed, good, repaired, tickets}
--@include once
--@include attempts
if once_reply then return once_reply end
local record = load_record(request.b)
if not record then return refuse('NOT_FOUND', request.b) end
local found = {waiting = redis.call('HLEN', K.parked(request.b)), pending = 0, delayed = redis.call('ZCARD', K.delayed(request.b)), running = 0}
local claimable = {}
for part = 0, #record.parts - 1 do
  claimable[part] = 0
  for _, range in ipairs(redis.call('LRANGE', K.fresh(request.b, part), 0, -1)) do
    local low, high = string.match(range, '^(%d+):(%d+)$')
    claimable[part] = claimable[part] + tonumber(high) - tonumber(low)
  end
  for _, position in ipairs(redis.call('LRANGE', K.back(request.b, part), 0, -1)) do
    if not has_outcome(request.b, position) then claimable[part] = claimable[part] + 1 end
  end
  found.pending = found.pending + claimable[part]
end
for _, stored in ipairs(redis.call('HVALS', K.running(request.b))) do
  found.running = found.running + count_range(cmsgpack.unpack(stored).r)
end
local finished = record.ok + record.failed + record.cancelled + record.skipped
local sum = found.pending + found.delayed + found.waiting + found.running + finished
local good = sum == record.total and found.pending == record.pending and found.delayed == record.delayed
  and found.running == record.running and found.waiting == record.waiting
for part, count in pairs(claimable) do good = good and record.claimable[part] == count end
local listed = record.over == 1 or redis.call('ZSCORE', K.open, request.b) ~= false
good = good and listed
local reply = {
  counted = {waiting = record.waiting, pending = record.pending, delayed = record.delayed, running = record.running, finished = finished, total = record.total},
  found = found, listed = listed, good = good, repaired = false, tickets = {},
}
if request.repair and not good and sum == record.total then
  record.pending, record.delayed, record.running, record.waiting = found.pending, found.delayed, found.running, found.waiting
  for part, count in pairs(claimable) do record.claimable[part] = count end
  if not listed then list_open(record) end
  audit_batch('batch.repaired', record, {counted = reply.counted, found = found})
  save_record(record)
  reply.repaired, reply.tickets = true, missing_tickets(record)
end
return answer(reply)
