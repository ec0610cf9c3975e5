-- Too many entries of the audit stream wait for a registered sealer. Without one the stream is bounded, see audit.lua.
-- In the usual case this is one look at a length.
--@include prelude
local function has_backlog(limit)
  return limit ~= nil and redis.call('XLEN', K.audit) > limit and redis.call('HEXISTS', K.audit_meta, 'sealer') == 1
end
