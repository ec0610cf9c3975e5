#!lua flags=allow-oom
-- reap_lane: a lane is lost: its lease ran out, its process died, or the hard time limit struck.
-- An item that was held alone counts the loss; several held together all go back to run alone, and nobody is blamed.
-- An item that was revoked is not blamed either: it gets its outcome as revoked.
-- Nor is one whose process was ended by a pause (`terminate`): it goes back as if it had not begun.
-- Request: b batch, s slot, g generation, why 'lease' | 'lost' | 'timeout' | 'paused', overdue_only, detail. Reply: {reaped, returned, failed, lost = positions given up, revoked = ranges, tickets}
--@include once
--@include finish
--@include cancelling
--@include revoking
if once_reply then return once_reply end
local record = load_record(request.b)
local lease = lease_member(request.b, request.s, request.g)
if not record then
  redis.call('ZREM', K.leases, lease)
  return answer({reaped = false, tickets = {}})
end
local slot = read_slot(request.b, request.s)
if not slot or slot.state ~= 'L' or slot.generation ~= request.g then
  redis.call('ZREM', K.leases, lease)
  return answer({reaped = false, tickets = {}})
end
records[request.b] = record
local deadline = tonumber(redis.call('ZSCORE', K.leases, lease) or 0)
if request.overdue_only and deadline > now then return answer({reaped = false, tickets = {}}) end

local stored = redis.call('HGET', K.running(request.b), slot.extra)
local holding = stored and cmsgpack.unpack(stored) or {r = {}, p = 0}
local count = count_range(holding.r)
local failed, attempts, returned = {}, {}, {}
local marks = read_marks(record)
local stopped = request.why == 'paused'
if not stopped and request.why ~= 'timeout' and is_anything_paused() then stopped = select(2, is_stopping(record, holding.p)) end
if stopped then give_back(record, holding, holding.r) end
for at = 1, stopped and 0 or #holding.r, 2 do
  for position = holding.r[at], holding.r[at + 1] - 1 do
    local entry = read_attempt(request.b, position, holding.p)
    entry.s, entry.d = 1, now
    if count == 1 then entry.l = entry.l + 1 end
    local most = part_max_lost(record.parts[holding.p + 1])
    local given_up = count == 1 and (request.why == 'timeout' or entry.l >= most)
    if given_up and not marks[string.format('%d', position)] then
      table.insert(failed, position)
      table.insert(attempts, entry.a + entry.l)
      redis.call('HDEL', K.attempts(request.b), position)
    else
      write_attempt(request.b, position, entry)
      table.insert(returned, position)
    end
  end
end
for at = #returned, 1, -1 do redis.call('LPUSH', K.back(request.b, holding.p), string.format('%d', returned[at])) end
redis.call('HDEL', K.running(request.b), slot.extra)
abandon_ranges(record, slot.extra, holding.p, holding.r, not stopped)
free_slot(record, request.s, slot)
if not stopped then record.running = record.running - count end
record.pending = record.pending + #returned
if #returned > 0 then record.claimable[holding.p] = record.claimable[holding.p] + #returned end
record.failed = record.failed + #failed
if not stopped then count_total('l', 1) end
local header = {slot = tonumber(request.s), why = request.why, r = holding.r, failed = #failed, detail = request.detail}
audit_batch(stopped and 'lane.stopped' or 'lane.lost', record, naming(record, positions_of(holding.r), header))
if #failed > 0 then
  local kind = request.why == 'timeout' and 'TimeLimitExceeded' or 'WorkerLost'
  count_ended(record, holding.p, 'failed', #failed)
  write_settled(record, failed, 1, kind, request.detail or '', attempts)
  local lost = {r = {failed[1], failed[1] + 1}, type = kind, detail = request.detail}
  audit_batch('item.lost', record, naming(record, failed, lost))
end
local revoked = settle_marked(record, slot.extra)
drain_cancelled(record)
local tickets = end_or_go_on(record)
close_others(request.b, tickets)
return answer({reaped = true, returned = #returned, failed = #failed, lost = failed, revoked = revoked, tickets = tickets, calls = released_calls})
