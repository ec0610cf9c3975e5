#!lua flags=allow-oom
-- cache_finish: a caller that leads has the result, or gives up; or it renews its lease.
-- Request: k key, owner, and one of: entry (see put_entry, the value is ARGV[5]) with limits, fail (true), renew seconds. Reply: {put, tickets, calls = {id, message}… to publish}
--@include once
--@include flight
if once_reply then return once_reply end
local counts, gone, tickets, reply = {}, {}, {}, {}
if request.renew then
  local flight = read_flight(request.k)
  reply.put = 'fenced'
  if flight.o == request.owner and flight.d then
    redis.call('HSET', K.flight(request.k), 'd', now + request.renew)
    redis.call('ZADD', K.flight_due, now + request.renew, request.k)
    reply.put = 'renewed'
  end
elseif request.fail then
  abandon(request.k, request.owner, nil, nil, true)
else
  request.entry.k = request.k
  reply.put = finish_flight(request.entry, ARGV[5], request.owner, nil, nil, request.limits, counts, gone)
  local stored = {}
  if reply.put == 'stored' then stored = {{request.entry.l[1], request.entry.l[3] or '', #ARGV[5]}} end
  audit_puts(stored, gone)
end
write_tally(counts)
close_others(nil, tickets)
reply.tickets, reply.calls = tickets, released_calls
return answer(reply)
