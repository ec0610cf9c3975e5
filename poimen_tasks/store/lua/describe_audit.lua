#!lua flags=allow-oom
-- describe_audit: the audit stream and its sealer as they are now; changes nothing.
-- Request: nothing. Reply: the fields of sealer.lua, and now, alive, length, added, last, oldest.
--@include sealer
return cmsgpack.pack(describe(read_meta()))
