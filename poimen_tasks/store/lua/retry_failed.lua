#!lua
-- retry_failed: failed items run again in a new round, at most 500 a call. An item whose outcome is not the one named is left alone.
-- A batch that is over begins a new round. With `more` another call follows: the batch is unsealed until the last one, so
-- that it does not end between two of them; if the caller dies there, the batch is stalled and a dispatch of the same id seals it.
-- Request: b batch, items {position, partition, ordinal}…, round (the one to begin), actor, more, producer seconds.
-- Reply: {retried, round, tickets}
--@include once
--@include append
if once_reply then return once_reply end
--@sound
local record = load_record(request.b)
if not record then return refuse('NOT_FOUND', request.b) end
if request.round > record.round + 1 then return refuse('ROUND', record.round) end
if record.cancel == 1 then return refuse('CANCELLED', request.b) end
if record.callbacks > 0 then return refuse('CALLBACKS', record.callbacks) end
local round = math.max(request.round, record.round + record.over)
local retried = {}
for _, item in ipairs(request.items) do
  local position, part = item[1], item[2]
  if item[3] > 0 and redis.call('GETRANGE', K.index(request.b), position * 4, position * 4 + 3) == struct.pack('>I4', item[3]) then
    redis.call('SETRANGE', K.index(request.b), position * 4, '\0\0\0\0')
    -- Claim numbers of a round are above those of the rounds before it, so that no report from then is taken for one.
    write_attempt(request.b, position, {p = part, a = 0, l = 0, s = 0, n = round * 65536, d = now})
    redis.call('RPUSH', K.back(request.b, part), string.format('%d', position))
    record.claimable[part] = record.claimable[part] + 1
    table.insert(retried, position)
    table.insert(retried, position + 1)
  end
end
local count = #retried / 2
if count > 0 then
  record.failed = record.failed - count
  record.pending = record.pending + count
  record.round = round
  if record.over == 1 then
    record.over, record.finished = 0, 0
    for _, key in ipairs(BATCH_KEYS) do redis.call('PERSIST', key(request.b)) end
    redis.call('ZREM', K.expiring, request.b .. '\t' .. record.workflow)
    list_open(record)
  end
  local header = {a = request.actor, r = retried, round = record.round}
  audit_batch('batch.retried', record, naming(record, positions_of(retried), header))
end
if request.more and record.sealed == 1 then
  record.sealed = 0
  redis.call('HSET', K.record(request.b), 'unsealed', 1, 'producer', now + request.producer)
end
local tickets = nil
if not request.more and redis.call('HDEL', K.record(request.b), 'unsealed') == 1 then tickets = seal_record(record) end
save_record(record)
return answer({retried = count, round = record.round, tickets = tickets or missing_tickets(record)})
