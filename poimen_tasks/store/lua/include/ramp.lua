-- A resume with a rate: at first only that many items a second may start in the scope, twice as many after each 5 s, and
-- after 60 s as many as want to. `ramps`: scope → `<rate>|<since>|<level>|<at>`, a bucket that had `level` items left at
-- `at`, and never holds more than what comes in 2 s.
--@include pausing
local RAMP_STEP, RAMP_END, RAMP_BURST = 5, 60, 2
local ramps = {}
local function is_anything_ramped()
  look_for_pauses()
  return any_ramped
end

-- The ramp of a scope as it is now, or nil.
local function read_ramp(scope)
  if ramps[scope] == nil then
    local rate, since, level, at = string.match(redis.call('HGET', K.ramps, scope) or '', '^([^|]+)|([^|]+)|([^|]+)|([^|]+)$')
    rate, since, level, at = tonumber(rate), tonumber(since), tonumber(level), tonumber(at)
    if rate and now - since >= RAMP_END then
      redis.call('HDEL', K.ramps, scope)
      rate = nil
    end
    ramps[scope] = false
    if rate then
      local speed = rate * 2 ^ math.floor(math.max(0, now - since) / RAMP_STEP)
      level = math.min(math.max(1, speed * RAMP_BURST), level + speed * math.max(0, now - at))
      ramps[scope] = {rate = rate, since = since, level = level}
    end
  end
  return ramps[scope] or nil
end

local function ramp_scopes(record, part)
  local scopes = batch_scopes(record)
  table.insert(scopes, 'q:' .. part_queue(record.parts[part + 1]))
  table.insert(scopes, 'a:' .. part_activity(record.parts[part + 1]))
  return scopes
end

-- How many items of a partition may start now; nil: any number.
local function ramp_room(record, part)
  if not is_anything_ramped() then return nil end
  local room = nil
  for _, scope in ipairs(ramp_scopes(record, part)) do
    local ramp = read_ramp(scope)
    if ramp then room = math.min(room or ramp.level, ramp.level) end
  end
  return room and math.floor(room)
end

-- So many items start in these scopes.
local function take_room(scopes, count)
  for _, scope in ipairs(scopes) do
    local ramp = read_ramp(scope)
    if ramp then
      ramp.level = ramp.level - count
      redis.call('HSET', K.ramps, scope, string.format('%.17g|%.17g|%.17g|%.17g', ramp.rate, ramp.since, ramp.level, now))
    end
  end
end
