#!lua
-- put_big: calls too large for a slice are written ahead of it, about a megabyte a call, so that no single write is long.
-- Positions are fixed, so writing again is harmless. Without a record yet they expire, unless the batch is opened meanwhile.
-- Request: b batch, positions; ARGV[5..] the calls. Reply: {ok}
--@include prelude
for at, position in ipairs(request.positions) do
  redis.call('HSET', K.big(request.b), position, ARGV[4 + at])
end
if redis.call('EXISTS', K.record(request.b)) == 0 then redis.call('EXPIRE', K.big(request.b), 3600) end
return cmsgpack.pack({ok = true})
