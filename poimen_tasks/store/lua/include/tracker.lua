-- A tracker: states of tasks, by name. Each key has every task once:
--   tracker         id to a msgpack map: v version (the number of the tracker's change that made it), s status, k the
--                   status's rank, scope, branch, verification, a actor, w why, c created and u updated (seconds), o its
--                   place, q the last request ids
--   tracker_order   ids by place, the order in which they were first seen
--   tracker_states  ids by rank * 2^40 + place, so that those of one status, and how many, are found without a look at
--                   the others
-- tracker_meta has `changes` and `places`, the last number of either that was given out, so that none comes twice.
local PLACES = 2 ^ 40
local TRACKED = {'scope', 'branch', 'verification'}

local NUMBERS, TEXTS_KEPT = {'v', 'k', 'o', 'c', 'u'}, {'s', 'scope', 'branch', 'verification', 'a', 'w'}

-- The state that is stored, or nil where that cannot be read: somebody else wrote it.
local function open_task(stored)
  local good, state = pcall(cmsgpack.unpack, stored)
  if not good or type(state) ~= 'table' or not (state.q == nil or type(state.q) == 'table') then return nil end
  for _, name in ipairs(NUMBERS) do
    local number = state[name]
    if type(number) ~= 'number' or not (number >= 0 and number < 2 ^ 53) then return nil end
  end
  for _, name in ipairs(TEXTS_KEPT) do
    if type(state[name]) ~= 'string' then return nil end
  end
  return state
end

-- The state of a task, nil where it is not there; and whether it is there and cannot be read.
local function load_task(tracker, id)
  local stored = redis.call('HGET', K.tracker(tracker), id)
  if not stored then return nil, false end
  local state = open_task(stored)
  return state, state == nil
end

local function save_task(tracker, id, state)
  redis.call('HSET', K.tracker(tracker), id, cmsgpack.pack(state))
  redis.call('ZADD', K.tracker_order(tracker), state.o, id)
  redis.call('ZADD', K.tracker_states(tracker), state.k * PLACES + state.o, id)
end

local function next_change(tracker)
  redis.call('HSETNX', K.tracker_meta(tracker), 'created', now)
  redis.call('HSET', K.tracker_meta(tracker), 'updated', now)
  return redis.call('HINCRBY', K.tracker_meta(tracker), 'changes', 1)
end
