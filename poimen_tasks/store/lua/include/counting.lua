-- Totals for metrics: how much of a kind there was since the store began; they only grow. Each is counted in the script
-- that makes the change, so a call that is sent twice counts once. Fields of `totals`:
--   i, tab, status, tab, activity   items that got their outcome; callbacks are none
--   r, tab, activity                attempts that are tried again
--   b, tab, state                   batches that ended     c, tab, status   callbacks that ended     l   lanes that were lost
-- An activity that would be one name too many counts under '', so that names which somebody makes up cannot fill the store.
-- A status is named as in the record: ok, failed, cancelled, skipped.
--@include record
local STATUSES, MOST_TOTALS = {'ok', 'failed', 'cancelled', 'skipped'}, 1000

-- A counter that is full, or a key that is no counter's, stays as it is: nothing fails for it.
local function count_total(field, n)
  return redis.pcall('HINCRBY', K.totals, field, n)
end

local function count_activity(kind, activity, n)
  local field = kind .. '\t' .. activity
  if count_total(field, n) == n and redis.call('HLEN', K.totals) > MOST_TOTALS and activity ~= '' then
    redis.call('HDEL', K.totals, field)
    count_total(kind .. '\t', n)
  end
end

-- Items of a partition (nil: nobody knows which) got this outcome.
local function count_ended(record, part, status, n)
  if n > 0 and not record.parent then
    count_activity('i\t' .. status, part and part_activity(record.parts[part + 1]) or '', n)
  end
end
