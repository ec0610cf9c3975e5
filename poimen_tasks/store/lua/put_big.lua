#!lua
-- put_big: calls too large for a slice are written ahead of it, about a megabyte a call, so that no single write is long.
-- Positions are fixed, so writing again is harmless; those of items that are there already stay as they are, and a sealed
-- batch gets none: the write they belong to will be refused. Without a record yet they expire, unless the batch is opened.
-- Request: b batch, positions; ARGV[5..] the calls. Reply: {ok}
--@include prelude
local known = redis.call('HMGET', K.record(request.b), 'parts', 'total', 'sealed')
if known[3] == '1' then return cmsgpack.pack({ok = false}) end
for at, position in ipairs(request.positions) do
  if position >= (tonumber(known[2]) or 0) then redis.call('HSET', K.big(request.b), position, ARGV[4 + at]) end
end
if not known[1] then redis.call('EXPIRE', K.big(request.b), 3600) end
return cmsgpack.pack({ok = true})
