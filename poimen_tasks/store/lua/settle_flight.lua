#!lua flags=allow-oom
-- settle_flight: look at a computation that is due: its result goes to more followers, a leader whose lease ran out is
-- let go, and a vacant flight lets another follower lead. Request: k key. Reply: {left (true: call again), tickets,
-- calls = {id, message}… to publish}
--@include once
--@include flight
if once_reply then return once_reply end
local due = tonumber(redis.call('ZSCORE', K.flight_due, request.k))
if not due or due > now then return answer({left = false, tickets = {}}) end
local flight, counts, tickets = read_flight(request.k), {}, {}
if flight.e then
  local stored = redis.call('GET', K.flight_value(request.k))
  if not stored then
    flight.n = 0
    pass_on(request.k, flight, true)
  elseif redis.call('EXISTS', K.followers(request.k)) == 1 then
    local activity, value = unpack(cmsgpack.unpack(stored))
    land(request.k, flight, value, activity, counts)
  else
    forget_flight(request.k)
  end
else
  local dead = flight.o and not is_led(flight)
  if dead then
    flight.n = flight.n + 1
    redis.call('ZREM', K.flights, request.k)
    audit('cache.takeover', {k = string.sub(redis.sha1hex(request.k), 1, 16), n = flight.n})
  end
  if not is_led(flight) then pass_on(request.k, flight, not dead) end
end
write_tally(counts)
close_others(nil, tickets)
local next_due = tonumber(redis.call('ZSCORE', K.flight_due, request.k))
return answer({left = next_due ~= nil and next_due <= now, tickets = tickets, calls = released_calls})
