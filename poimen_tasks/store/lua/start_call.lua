#!lua flags=allow-oom
-- start_call: a plain call begins, unless a pause covers it, or the ramp of a resume. Lean, without the prelude: it stands before every plain call.
-- It keeps no reply: sent again, it registers the same run again.
-- KEYS[1] as everywhere   ARGV: root, field (message id, TAB, worker, TAB, pid), lease (seconds), activity, queue, workflow, batch
-- Reply: '' it runs, and is registered; else the scope that covers it, and nothing is changed: ask `park_call`
local root, field, lease, activity, queue, workflow, batch = unpack(ARGV)
--@keys
local layout = redis.call('GET', K.layout)
if layout and layout ~= LAYOUT then return redis.error_reply('POIMEN_LAYOUT ' .. layout) end
if redis.call('EXISTS', K.pauses, K.ramps) > 0 then
  local scopes = {'*', 'a:' .. activity, 'q:' .. queue, 'w:' .. workflow, 'b:' .. batch}
  for _, key in ipairs({K.pauses, K.ramps}) do
    for at, flag in ipairs(redis.call('HMGET', key, unpack(scopes))) do
      if flag then return scopes[at] end
    end
  end
end
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
redis.call('HSET', K.running_calls, field,
  string.format('%.3f\t%.3f\t%s\t%s\t%s\t%s', now + tonumber(lease), now, activity, queue, workflow, batch))
return ''
