#!lua
-- step: a lane finishes items and claims the next in one go (or begins, or gives up its slot). See include/lane.lua.
-- Refused by a server that is out of memory; the lane then reports through `finish`.
--@include once
--@include lane
if once_reply then return with_chunks(once_reply) end
return with_chunks(lane_step(true))
