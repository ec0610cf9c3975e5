#!lua
-- record_one: one event that somebody records, in as few commands as can be: a caller's count, and the entry.
-- Instead of the reply a repetition gets the time of the store. Whether the layout, the epoch and the length of the stream
-- are as they should be is what `record_event` looks at, which a caller takes in between.
-- KEYS[1] as everywhere   ARGV: the names of two keys, which the caller makes once (recorder, audit), sequence, header and
-- event (strict JSON)   Reply: the entry's stream id, or text without a dash: nothing is done, `record_event` is to do it
local recorder_key, audit_key, sequence = ARGV[1], ARGV[2], tonumber(ARGV[3])
local seen = redis.pcall('INCR', recorder_key)
if type(seen) == 'table' then
  local foreign = string.find(seen.err, 'not an integer', 1, true) or string.find(seen.err, 'overflow', 1, true)
  return foreign and redis.error_reply('POIMEN_FOREIGN ' .. recorder_key) or seen
end
if seen > sequence then
  redis.call('DECR', recorder_key)
  if seen > sequence + 1 then return redis.error_reply('POIMEN_STALE ' .. sequence .. ' is behind ' .. seen - 1) end
  local clock = redis.call('TIME')
  return clock[1] .. string.format('%03d', math.floor(clock[2] / 1000)) .. '-0'
end
-- A caller's first call, or its first after one that was refused, or after an hour.
if seen < sequence or seen == 1 then redis.call('SET', recorder_key, ARGV[3], 'EX', '3600') end
local id = redis.pcall('XADD', audit_key, 'NOMKSTREAM', '*', 't', 'audit.recorded', 'h', ARGV[4], 'd', ARGV[5])
if type(id) == 'string' then return id end
redis.call('DECR', recorder_key)
return id or 'none'
