-- Who takes entries off the audit stream, and how far that came. Fields of `audit:meta`:
--   epoch    random, made anew whenever the stream begins anew: ids of two epochs have nothing to do with each other
--   sealer   fencing token: absent means that no sealer is registered
--   who      the sealer in words         home     its directory: the same home may take over at once, by its file lock
--   since, beat, lease    registered when, last heard of when (0: it left in order), for how many seconds that counts
--   sealed, root, cursor  published: lines on disk, their Merkle root, the id of the last entry among them
--   gone     entries that had left the stream (`entries-added` less its length) when that was published
--   dropped  entries dropped while nobody was registered;  counted: of them in `gone`;  dropped_told: of them sealed
--   vanished entries that left unsealed through somebody else;  vanished_told, vanished_at (when)
--@include prelude
local FIELDS = {
  'epoch', 'sealer', 'who', 'home', 'since', 'beat', 'lease', 'sealed', 'root', 'cursor', 'gone', 'dropped', 'counted',
  'dropped_told', 'vanished', 'vanished_told', 'vanished_at',
}
local NUMBERS = {
  since = true, beat = true, lease = true, sealed = true, gone = true, dropped = true, counted = true,
  dropped_told = true, vanished = true, vanished_told = true, vanished_at = true,
}

local function read_meta()
  local meta = {}
  for at, value in ipairs(redis.call('HMGET', K.audit_meta, unpack(FIELDS))) do
    local name = FIELDS[at]
    if NUMBERS[name] then meta[name] = tonumber(value) or 0 elseif value then meta[name] = value end
  end
  return meta
end

-- A beat from the future is that of a clock which went back since.
local function is_alive(meta)
  return meta.sealer ~= nil and math.abs(now - meta.beat) < meta.lease
end

local function read_stream()
  local stream = {length = 0, added = 0, last = '0-0'}
  if redis.call('EXISTS', K.audit) == 0 then return stream end
  local info = redis.call('XINFO', 'STREAM', K.audit)
  for at = 1, #info, 2 do
    if info[at] == 'length' then stream.length = info[at + 1] end
    if info[at] == 'entries-added' then stream.added = info[at + 1] end
    if info[at] == 'last-generated-id' then stream.last = info[at + 1] end
    if info[at] == 'first-entry' and info[at + 1] then stream.oldest = info[at + 1][1] end
  end
  return stream
end

-- What a sealer knows of the stream after each of its steps.
local function describe(meta)
  local stream = read_stream()
  for _, name in ipairs({'length', 'added', 'last', 'oldest'}) do meta[name] = stream[name] end
  meta.now, meta.alive = now, is_alive(meta)
  return meta
end

-- The error for a sealer that is not the registered one, or that knows another stream; nil when all is well.
local function fence(meta)
  if meta.sealer ~= request.token then return refuse('FENCED', meta.who or '') end
  if meta.epoch ~= request.epoch then return refuse('EPOCH', meta.epoch or '') end
  return nil
end
