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

local function load_task(tracker, id)
  local stored = redis.call('HGET', K.tracker(tracker), id)
  return stored and cmsgpack.unpack(stored) or nil
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
