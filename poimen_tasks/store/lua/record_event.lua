#!lua
-- record_event: events that somebody records, each one entry of the stream, in order, all of them or none.
-- Request: ids, the events' own, at most 500. ARGV[5..] the events, strict JSON. Reply: {ids = the entries' stream ids}
--@include once
--@include audit
if once_reply then return once_reply end
if #request.ids > 500 then return refuse('TOO_MANY', #request.ids) end
if #request.ids ~= #ARGV - 4 then return refuse('COUNT', #ARGV - 4) end
local made = {}
for at, id in ipairs(request.ids) do made[at] = audit('audit.recorded', {i = id}, ARGV[4 + at]) end
return answer({ids = made})
