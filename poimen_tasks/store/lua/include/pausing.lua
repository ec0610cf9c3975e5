-- What is paused. A scope is `*`, `w:<workflow>`, `b:<batch>`, `q:<queue>` or `a:<activity>`; `pauses` has, for each that
-- is paused, `<epoch>|<stop_at or ->|<1: terminate>`: from stop_at (server time) on running items are asked to stop.
-- A batch is covered by `*`, its workflow and itself (a hidden batch by its parent); a partition of it also by its queue
-- and its activity. What a scope holds back is noted in `held`, so that a resume finds it without a scan.
--@include record
local any_paused, any_ramped = nil, nil
-- While nothing is paused and nothing ramps up this one look is the whole cost.
local function look_for_pauses()
  if any_paused ~= nil then return end
  local count = redis.call('EXISTS', K.pauses, K.ramps)
  any_paused = count == 2 or (count == 1 and redis.call('EXISTS', K.pauses) == 1)
  any_ramped = count == 2 or (count == 1 and not any_paused)
end

local function is_anything_paused()
  look_for_pauses()
  return any_paused
end

-- The scopes that can cover a batch as a whole.
local function batch_scopes(record)
  return {'*', 'w:' .. record.workflow, 'b:' .. (record.parent or record.batch)}
end

-- Which of these scopes are paused: list of {scope, flag}.
local function covering(scopes)
  local found = {}
  if not is_anything_paused() then return found end
  for at, flag in ipairs(redis.call('HMGET', K.pauses, unpack(scopes))) do
    if flag then table.insert(found, {scopes[at], flag}) end
  end
  return found
end

-- Which partitions of a batch are paused: `all` and [partition] are true or false. One HMGET.
local function paused_parts(record)
  local paused = {all = false}
  if not is_anything_paused() then return paused end
  local scopes = batch_scopes(record)
  for _, part in ipairs(record.parts) do
    table.insert(scopes, 'q:' .. part_queue(part))
    table.insert(scopes, 'a:' .. part_activity(part))
  end
  local flags = redis.call('HMGET', K.pauses, unpack(scopes))
  paused.scopes, paused.flags = scopes, flags
  paused.all = (flags[1] or flags[2] or flags[3]) and true or false
  for at = 1, #record.parts do
    paused[at - 1] = paused.all or (flags[2 + at * 2] or flags[3 + at * 2]) and true or false
  end
  return paused
end

-- Note the batch with every scope that covers this partition; `paused` is what `paused_parts` told.
local function hold(record, paused, part)
  for _, at in ipairs({1, 2, 3, 4 + part * 2, 5 + part * 2}) do
    if paused.flags[at] then redis.call('SADD', K.held(paused.scopes[at]), 'b\t' .. record.batch) end
  end
end

-- A flag read: epoch, stop_at (nil: never), terminate.
local function read_flag(flag)
  local epoch, stop_at, terminate = string.match(flag, '^(%d+)|([^|]*)|(%d)$')
  return tonumber(epoch), tonumber(stop_at), terminate == '1'
end

-- Whether the bodies that run in a partition have been asked to stop, and whether their processes are to be ended: that
-- is done a moment later, so that a body which saves its state can still do so.
local STOP_NOTICE = 1
local function is_stopping(record, part)
  local scopes = batch_scopes(record)
  table.insert(scopes, 'q:' .. part_queue(record.parts[part + 1]))
  table.insert(scopes, 'a:' .. part_activity(record.parts[part + 1]))
  local asked, ended = false, false
  for _, cover in ipairs(covering(scopes)) do
    local _, stop_at, terminate = read_flag(cover[2])
    asked = asked or (stop_at ~= nil and stop_at <= now)
    ended = ended or (terminate and stop_at ~= nil and stop_at + STOP_NOTICE <= now)
  end
  return asked, ended
end

-- The batch has nothing left to be held.
local function unhold(record)
  if not is_anything_paused() then return end
  local paused = paused_parts(record)
  for at, flag in ipairs(paused.flags) do
    if flag then redis.call('SREM', K.held(paused.scopes[at]), 'b\t' .. record.batch) end
  end
end
