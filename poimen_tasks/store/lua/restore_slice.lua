#!lua
-- restore_slice: a piece of a batch that is being restored. Until `restore_end` the batch has no partitions, so that every
-- other script takes it for one that is not known; and it expires when nobody goes on. Each piece may be written again.
-- Request: snapshot, holder, hold seconds, b batch, and any of these, whose payloads stand in ARGV[5..] in this order:
--   index offset in bytes   chunks numbers   names numbers   digests numbers   big positions   outcomes {ordinal, ends}…
--   attempts positions   checkpoints positions
-- and without payloads: ids {id, position, …}   delayed {due, member, …}
--   lists {key 'f' or 'k', partition, entries before these, entries}…
-- Reply: {done} (true: this batch is restored already)
--@include prelude
local LIFE = 86400
local fenced = redis.call('HMGET', K.restored(request.snapshot), 'state', 'holder')
if fenced[1] ~= 'restoring' or fenced[2] ~= request.holder then return refuse('RESTORING', request.b) end
local record = redis.call('HMGET', K.record(request.b), 'parts', 'restored', 'restoring')
if record[1] and record[2] == request.snapshot then return cmsgpack.pack({done = true}) end
if record[1] or (record[3] and record[3] ~= request.snapshot) then return refuse('LIVE', request.b) end

local at = 4
local function payload()
  at = at + 1
  return ARGV[at]
end
local function keep(key) redis.call('EXPIRE', key, LIFE) end
local function fill(key, fields)
  if not fields or #fields == 0 then return end
  for _, field in ipairs(fields) do redis.call('HSET', key, string.format('%d', field), payload()) end
  keep(key)
end

redis.call('HSET', K.restored(request.snapshot), 'until', now + request.hold)
redis.call('HSET', K.record(request.b), 'restoring', request.snapshot)
keep(K.record(request.b))
if request.index then
  redis.call('SETRANGE', K.index(request.b), request.index, payload())
  keep(K.index(request.b))
end
fill(K.items(request.b), request.chunks)
fill(K.names(request.b), request.names)
fill(K.digests(request.b), request.digests)
fill(K.big(request.b), request.big)
if request.outcomes then
  local last = redis.call('XREVRANGE', K.outcomes(request.b), '+', '-', 'COUNT', 1)
  last = last[1] and tonumber(string.match(last[1][1], '^%d+')) or 0
  for _, outcome in ipairs(request.outcomes) do
    local blob = payload()
    if outcome[1] > last then
      local id = string.format('%d-0', outcome[1])
      if outcome[2] then redis.call('XADD', K.outcomes(request.b), id, 'b', blob, 'o', '1')
      else redis.call('XADD', K.outcomes(request.b), id, 'b', blob) end
    end
  end
  keep(K.outcomes(request.b))
end
fill(K.attempts(request.b), request.attempts)
fill(K.checkpoints(request.b), request.checkpoints)
if request.ids and #request.ids > 0 then
  redis.call('HSET', K.ids(request.b), unpack(request.ids))
  keep(K.ids(request.b))
end
if request.delayed and #request.delayed > 0 then
  redis.call('ZADD', K.delayed(request.b), unpack(request.delayed))
  keep(K.delayed(request.b))
end
for _, list in ipairs(request.lists or {}) do
  local key = list[1] == 'f' and K.fresh(request.b, list[2]) or K.back(request.b, list[2])
  if redis.call('LLEN', key) == list[3] then redis.call('RPUSH', key, unpack(list[4])) end
  keep(key)
end
return cmsgpack.pack({done = false})
