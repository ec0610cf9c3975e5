#!lua flags=allow-oom
-- cache_begin: a caller wants one result: it gets it, computes it (and leads), waits, or computes it for itself.
-- Request: k key, activity, owner, lease seconds, since (the clock of its first asking, or nil), alone (true: it must not wait),
--   call {id, message} when it is a plain call that can wait without a process.
-- Reply: {hit = value} | {lead = clock} | {wait = clock} | {parked = true} | {alone = true}
--@include once
--@include flight
if once_reply then return once_reply end
local counts, reply = {}, {}
local entry = look_up(request.k, counts)
local flight = not entry and read_flight(request.k)
if entry then
  if request.since then
    touch_entry(request.k, entry, cache_clock(), {})
    tally(counts, request.activity, 'coalesced', 1)
    tally(counts, request.activity, 'saved', math.floor(entry.seconds * 1000000))
  else
    touch_entry(request.k, entry, cache_clock(), counts)
  end
  reply.hit = entry.value
elseif flight.e and request.since and flight.e > request.since and redis.call('EXISTS', K.flight_value(request.k)) == 1 then
  local _, value = unpack(cmsgpack.unpack(redis.call('GET', K.flight_value(request.k))))
  tally(counts, request.activity, 'coalesced', 1)
  reply.hit = value
elseif is_led(flight) and flight.o ~= request.owner and request.alone then
  tally(counts, request.activity, 'misses', 1)
  reply.alone = true
elseif is_led(flight) and flight.o ~= request.owner and request.call then
  redis.call('HSET', K.waiting_calls, request.call[1], request.call[2])
  redis.call('RPUSH', K.followers(request.k), cmsgpack.pack({request.call[1]}))
  audit('call.parked', {id = request.call[1], activity = request.activity})
  reply.parked = true
elseif is_led(flight) and flight.o ~= request.owner then
  redis.call('HSET', K.flight(request.k), 'w', 1)
  reply.wait = request.since or cache_clock()
elseif flight.n >= MOST_FAILED then
  tally(counts, request.activity, 'misses', 1)
  reply.alone = true
else
  if flight.o and flight.o ~= request.owner then
    flight.n = flight.n + 1
    audit('cache.takeover', {activity = request.activity, n = flight.n})
  end
  reply.lead = lead(request.k, flight, request.owner, nil, nil, request.lease)
  tally(counts, request.activity, 'misses', 1)
end
write_tally(counts)
return answer(reply)
