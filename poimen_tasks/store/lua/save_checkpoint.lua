#!lua
-- save_checkpoint: a running body saves its state, from which it goes on when it starts again; only while its lane holds
-- the item. Saving the same again is harmless, so it keeps no reply. The state goes with the item's outcome.
-- Request: those of include/asking.lua. ARGV[5] the state. Reply: {cancelled, revoked, stop, mine (false: it was not saved)}
--@include prelude
--@include asking
local told = tell_item()
if told.mine then redis.call('HSET', K.checkpoints(request.b), request.position, ARGV[5]) end
return cmsgpack.pack(told)
