-- Plain calls under a pause: those that are parked, and those that run.
--@include pausing

-- A parked call whose scope was resumed: publish it, unless another scope covers it still. Adds {id, message} to `calls`.
local function release_paused_call(id, calls) end -- luacheck: ignore

-- The plain calls that run in a scope: a list of {id, activity}.
local function running_calls_in(scope) return {} end -- luacheck: ignore
