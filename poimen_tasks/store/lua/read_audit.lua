#!lua flags=allow-oom
-- read_audit: entries of the stream behind an id, of the caller's epoch and for the registered sealer only.
-- Request: token, epoch, after (id), count, bytes (no further entry is added over it), most (an id; optional: none behind
-- it). Reply: {entries = {id, {field, value…}}…, full (true: there may be more)}
--@include sealer
local refused = fence(read_meta())
if refused then return refused end
local entries, size, after, full = {}, 0, request.after, false
while #entries < request.count and size < request.bytes do
  -- As many as are likely to fit: a first few tell how large they are.
  local likely = #entries == 0 and 8 or math.ceil((request.bytes - size) * #entries / math.max(1, size))
  local wanted = math.min(100, likely, request.count - #entries)
  local found = redis.call('XRANGE', K.audit, '(' .. after, request.most or '+', 'COUNT', wanted)
  for _, entry in ipairs(found) do
    if size >= request.bytes then break end
    table.insert(entries, entry)
    for _, value in ipairs(entry[2]) do size = size + #value end
    after = entry[1]
  end
  full = #found == wanted
  if not full then break end
end
return cmsgpack.pack({entries = entries, full = full})
