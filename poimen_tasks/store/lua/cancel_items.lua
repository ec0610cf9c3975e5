#!lua flags=allow-oom
-- cancel_items: single items are revoked, at most 500 a call. One that waits (also for a retry) gets its outcome at once;
-- one that a lane holds is marked, see include/revoking.lua. What is over, unknown or marked already is left alone.
-- Request: b batch, positions, reason, actor, signal (0: running bodies are only told; else it ends the process of each).
-- Reply: {settled, running = ranges that this call changed, over, tickets}
--@include once
--@include revoking
if once_reply then return once_reply end
--@sound
local record = load_record(request.b)
if not record then return refuse('NOT_FOUND', request.b) end
if #request.positions > 500 then return refuse('TOO_MANY', #request.positions) end
if record.over == 1 then return answer({settled = {}, running = {}, over = 1, tickets = {}}) end

local open, seen = {}, {}
for _, position in ipairs(request.positions) do
  if not seen[position] and position >= 0 and position < record.total and not has_outcome(request.b, position) then
    table.insert(open, position)
  end
  seen[position] = true
end
table.sort(open)

local marks, marked, held_by = read_marks(record), {}, {}
local lanes = #open > 0 and redis.call('HGETALL', K.running(request.b)) or {}
for at = 1, #lanes, 2 do
  local holding, touched = cmsgpack.unpack(lanes[at + 1]), false
  for _, position in ipairs(open) do
    if holds(holding.r, position) then
      local name = string.format('%d', position)
      held_by[position] = true
      if not marks[name] or (request.signal ~= 0 and request.signal ~= marks[name].k) then
        marks[name] = {t = lanes[at], p = holding.p, r = request.reason, a = request.actor, k = request.signal}
        table.insert(marked, position)
        touched = true
      end
    end
  end
  if touched then ask_for_kill(record, lanes[at], holding.r, marks) end
end
if #marked > 0 then
  table.sort(marked)
  write_marks(record, marks)
  local header = {r = ranges_of(marked), reason = request.reason, a = request.actor, signal = request.signal}
  audit_batch('item.revoking', record, naming(record, marked, header))
end

local waiting = {}
for _, position in ipairs(open) do
  if not held_by[position] then table.insert(waiting, {position, partition_of(record, position)}) end
end
local settled = settle_revoked(record, waiting, request.reason, request.actor)
local tickets = {}
if #settled > 0 then
  tickets = end_or_go_on(record)
end
return answer({settled = settled, running = ranges_of(marked), over = record.over, tickets = tickets})
