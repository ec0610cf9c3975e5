#!lua flags=allow-oom
-- finish: the same as `step`, without a claim: it works on a server that is out of memory, so no outcome is lost.
--@include once
--@include lane
if once_reply then return once_reply end
return lane_step(false)
