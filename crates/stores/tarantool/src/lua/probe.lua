-- Returns whether the library is loaded for a prefix, whether the instance is read-only, and the stored format.
local name, prefix = ...
local all, meta = rawget(_G, name), box.space[prefix .. '_meta']
local format = meta and meta:get('format')
return { all ~= nil and all.parts[prefix] ~= nil, box.info.ro, format and format[2] or 0 }
