local name, prefix, format, text = ...
local all = rawget(_G, name)
if not all then
    all = { parts = {} }
    function all.call(part, verb, ...)
        return all.parts[part][verb](...)
    end
    rawset(_G, name, all)
end
local chunk, why = loadstring(text, '=taskyard')
if not chunk then
    error(why)
end
-- A name that is nobody's is a mistake here, and must not become one of everybody.
local function refuse(_, key)
    error("taskyard: '" .. key .. "' is not declared", 2)
end
setfenv(chunk, setmetatable({}, { __index = _G, __newindex = refuse }))
all.parts[prefix] = chunk(prefix, format, 'taskyard_news_1')
