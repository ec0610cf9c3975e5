#!lua flags=allow-oom
-- release_held: some more of what a resumed scope had held back. Request: scope. Reply: {left (call again), released, tickets, calls}
--@include once
--@include releasing
if once_reply then return once_reply end
return answer(release_some(request.scope))
