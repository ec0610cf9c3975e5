#!lua
-- tracker_update: tasks of a tracker get a status and other values; one that is not there begins. What says nothing new
-- changes nothing and has no entry, and so does a request id that the task remembers.
-- Request: tracker, tasks (at most 500: {i id, s status and k its rank, f {scope, branch, verification}}, of these only
--   what is given; a new task has all of s and k), id (request id, '' for none), expected (the version of the one task,
--   0: it is not there; nil: any), pending {s, k} of a task that begins without a status, actor, reason,
--   workflow (nil: none)
-- Reply: {task (its state afterwards, where it is one), changed (how many), conflict (nothing was done: another version)}
--@include once
--@include audit
--@include tracker
if once_reply then return once_reply end
--@sound
local MOST_REQUESTS = 8
if #request.tasks > 500 then return refuse('TOO_MANY', #request.tasks) end

local function remembers(state)
  for _, seen in ipairs(request.id ~= '' and state.q or {}) do
    if seen == request.id then return true end
  end
  return false
end

local function remember(state)
  if request.id == '' then return end
  state.q = state.q or {}
  table.insert(state.q, request.id)
  if #state.q > MOST_REQUESTS then table.remove(state.q, 1) end
end

-- The texts that differ, by name; nil for none.
local function texts_of(state, differ)
  local values = nil
  for _, name in ipairs(differ) do
    if name ~= 'status' then
      values = values or {}
      values[name] = state[name]
    end
  end
  return values
end

-- The names of the values that differ from what is given, which the state gets.
local function take_over(state, given)
  local differ = {}
  if given.s and given.s ~= state.s then
    state.s, state.k = given.s, given.k
    table.insert(differ, 'status')
  end
  for _, name in ipairs(TRACKED) do
    local value = given.f and given.f[name]
    if value and value ~= state[name] then
      state[name] = value
      table.insert(differ, name)
    end
  end
  return differ
end

local states = {}
for _, given in ipairs(request.tasks) do
  local state, damaged = load_task(request.tracker, given.i)
  if damaged then return refuse('DAMAGED', given.i) end
  states[given.i] = state
end

local last, changed = nil, 0
for _, given in ipairs(request.tasks) do
  local state = states[given.i]
  local known = state ~= nil
  if not (known and remembers(state)) then
    if request.expected and request.expected ~= (known and state.v or 0) then
      return answer({conflict = true, task = state, changed = 0})
    end
    if not known then
      state = {s = request.pending.s, k = request.pending.k, c = now, scope = '', branch = '', verification = ''}
      states[given.i] = state
    end
    local before = known and state.s or nil
    local differ = take_over(state, given)
    if #differ > 0 or not known then
      if not layout then redis.call('SET', K.layout, LAYOUT) end
      changed = changed + 1
      if not known then
        redis.call('ZADD', K.trackers, 'NX', now, request.tracker)
        state.o = redis.call('HINCRBY', K.tracker_meta(request.tracker), 'places', 1)
      end
      state.v, state.u, state.a, state.w = next_change(request.tracker), now, request.actor, request.reason
      remember(state)
      save_task(request.tracker, given.i, state)
      audit('tracker.updated', {
        tracker = request.tracker, task = given.i, version = state.v, from = before, to = state.s,
        values = texts_of(state, differ), w = request.workflow, a = request.actor, reason = request.reason,
      })
    elseif request.id ~= '' then
      remember(state)
      save_task(request.tracker, given.i, state)
    end
  end
  last = state
end
return answer({task = #request.tasks == 1 and last or nil, changed = changed})
