local name, prefix, format, text = ...
local all, fiber = rawget(_G, name), require('fiber')
if not all then
    all = { parts = {} }
    -- A transaction must not yield, however long it is: Tarantool 3 refuses what has not done so for a second, unless it is told
    -- not to.
    local slice = { warn = 3600, err = 3600 }
    function all.call(part, verb, ...)
        if fiber.set_slice then
            fiber.set_slice(slice)
        end
        return all.parts[part][verb](...)
    end
    rawset(_G, name, all)
end
-- Others may have brought it meanwhile, and it may have begun to remember things.
if all.parts[prefix] then
    return
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
