#!lua
-- record_event: events that somebody records, each one entry of the stream, in order, all of them or none.
-- Made lean, without the prelude and `once.lua`, which take longer than the entry; what both of them promise holds: a
-- sequence that was seen gets its reply again, a lower one is refused, and the stream is bounded as in `audit.lua`.
-- KEYS[1] as everywhere   ARGV: root, owner, sequence, most unsealed entries; then header and event (strict JSON) of each,
-- at most 500. Reply: the entries' stream ids, with spaces between them
local root, owner, sequence, limit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
--@keys
local count = (#ARGV - 4) / 2
local layout, seen = unpack(redis.call('MGET', K.layout, K.owner(owner)))
if layout and layout ~= LAYOUT then return redis.error_reply('POIMEN_LAYOUT ' .. layout) end
if seen then
  local colon = string.find(seen, ':', 1, true)
  local last = string.sub(seen, 1, colon - 1)
  if last == sequence then return string.sub(seen, colon + 1) end
  if tonumber(sequence) < tonumber(last) then
    return redis.error_reply('POIMEN_STALE ' .. sequence .. ' is behind ' .. last)
  end
end
if count > 500 then return redis.error_reply('POIMEN_TOO_MANY ' .. count) end
if count < 1 or count % 1 ~= 0 then return redis.error_reply('POIMEN_COUNT ' .. count) end

-- Alone, an event is only added: a stream that is there has its epoch. Its length is looked at with an owner's first call,
-- and then with one in sixteen: the bound has room enough for what comes between.
local ids = {}
if count == 1 and tonumber(sequence) % 16 ~= 1 then
  ids[1] = redis.call('XADD', K.audit, 'NOMKSTREAM', '*', 't', 'audit.recorded', 'h', ARGV[5], 'd', ARGV[6]) or nil
end
if not ids[1] then
  local meta = redis.call('HMGET', K.audit_meta, 'epoch', 'sealer')
  if not meta[1] then
    local clock = redis.call('TIME')
    redis.call('HSET', K.audit_meta, 'epoch', redis.sha1hex(owner .. clock[1] .. clock[2]))
  end
  local length = meta[2] and 0 or redis.call('XLEN', K.audit)
  if length + count > limit + math.min(1000, limit) and length >= limit then
    ids[1] = redis.call('XADD', K.audit, 'MAXLEN', limit, '*', 't', 'audit.recorded', 'h', ARGV[5], 'd', ARGV[6])
    redis.call('HINCRBY', K.audit_meta, 'dropped', length + 1 - limit)
  end
  for at = #ids + 1, count do
    ids[at] = redis.call('XADD', K.audit, '*', 't', 'audit.recorded', 'h', ARGV[3 + 2 * at], 'd', ARGV[4 + 2 * at])
  end
end
local reply = table.concat(ids, ' ')
redis.call('SET', K.owner(owner), sequence .. ':' .. reply, 'EX', 600)
return reply
