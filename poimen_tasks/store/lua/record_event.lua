#!lua
-- record_event: events that somebody records, each one entry of the stream, in order, all of them or none.
-- Made lean, without the prelude and `once.lua`, which take longer than the entry; what both of them promise holds: a
-- sequence that was seen gets its reply again, a lower one is refused, and the stream is bounded as in `audit.lua`.
-- KEYS[1] as everywhere   ARGV: the names of four keys, which the caller makes once (owner, recorder, audit, audit_meta),
-- sequence, most unsealed entries; then header and event (strict JSON) of each, at most 500. Reply: the entries' stream
-- ids, with spaces between them
local owner_key, recorder_key, audit_key, meta_key, sequence = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
--@keys
local found = redis.call('MGET', KEYS[1], owner_key, recorder_key)
local layout, seen, alone = found[1], found[2], found[3]
if layout and layout ~= LAYOUT then return redis.error_reply('POIMEN_LAYOUT ' .. layout) end
if seen then
  local last = string.match(seen, '^(%d+):')
  if not last then return redis.error_reply('POIMEN_FOREIGN ' .. owner_key) end
  if last == sequence then return string.sub(seen, #last + 2) end
  if tonumber(sequence) < tonumber(last) then
    return redis.error_reply('POIMEN_STALE ' .. sequence .. ' is behind ' .. last)
  end
end
if alone and not tonumber(alone) then return redis.error_reply('POIMEN_FOREIGN ' .. recorder_key) end
if alone and tonumber(sequence) < tonumber(alone) then  -- what went by `record_one` meanwhile
  return redis.error_reply('POIMEN_STALE ' .. sequence .. ' is behind ' .. alone)
end

local limit, count = tonumber(ARGV[6]), (#ARGV - 6) / 2
if count > 500 then return redis.error_reply('POIMEN_TOO_MANY ' .. count) end
if count < 1 or count % 1 ~= 0 then return redis.error_reply('POIMEN_COUNT ' .. count) end
local meta = redis.call('HMGET', meta_key, 'epoch', 'sealer')
if not meta[1] then
  local clock = redis.call('TIME')
  redis.call('HSET', meta_key, 'epoch', redis.sha1hex(owner_key .. clock[1] .. clock[2]))
end
local ids = {}
local length = meta[2] and 0 or redis.call('XLEN', audit_key)
if length + count > limit + math.min(1000, limit) and length >= limit then
  ids[1] = redis.call('XADD', audit_key, 'MAXLEN', limit, '*', 't', 'audit.recorded', 'h', ARGV[7], 'd', ARGV[8])
  redis.call('HINCRBY', meta_key, 'dropped', length + 1 - limit)
end
for at = #ids + 1, count do
  ids[at] = redis.call('XADD', audit_key, '*', 't', 'audit.recorded', 'h', ARGV[5 + 2 * at], 'd', ARGV[6 + 2 * at])
end
local reply = table.concat(ids, ' ')
redis.call('SET', owner_key, sequence .. ':' .. reply, 'EX', 600)
redis.call('SET', recorder_key, sequence, 'EX', 3600)
return reply
