-- The opening of every script: arguments, keys, clock, layout.
--   KEYS[1]  {namespace}:layout, which pins the hash slot; every other key is built from ARGV[1]
--   ARGV[1]  the root of all keys         ARGV[2]  owner: a random id of the caller
--   ARGV[3]  sequence: grows by one with each new request of that owner
--   ARGV[4]  the request, msgpack         ARGV[5..] payloads that are passed on unread
-- Errors are `POIMEN_<CODE> <detail>` and are returned before anything is written.
local root, owner, sequence = ARGV[1], ARGV[2], tonumber(ARGV[3])
local request = cmsgpack.unpack(ARGV[4])
--@keys
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000

local function refuse(code, detail)
  return redis.error_reply('POIMEN_' .. code .. ' ' .. tostring(detail or ''))
end

local layout = redis.call('GET', K.layout)
if layout and layout ~= LAYOUT then return refuse('LAYOUT', layout) end
