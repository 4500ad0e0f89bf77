-- Loads the library for a prefix, unless it is loaded, into a global table with the name of its version.
local name, prefix, format, text = ...
local all, fiber = rawget(_G, name), require('fiber')
if not all then
    all = { parts = {} }
    -- A transaction must not yield, however long it takes: by default Tarantool 3 aborts a fiber that does not yield for a second.
    local slice = { warn = 3600, err = 3600 }
    function all.call(part, verb, ...)
        if fiber.set_slice then
            fiber.set_slice(slice)
        end
        return all.parts[part][verb](...)
    end
    rawset(_G, name, all)
end
-- Another server may have loaded it meanwhile, and it may have state.
if all.parts[prefix] then
    return
end
local chunk, why = loadstring(text, '=taskyard')
if not chunk then
    error(why)
end
-- An undeclared name is a mistake, and must not become a global.
local function refuse(_, key)
    error("taskyard: '" .. key .. "' is not declared", 2)
end
setfenv(chunk, setmetatable({}, { __index = _G, __newindex = refuse }))
all.parts[prefix] = chunk(prefix, format, 'taskyard_news_1')
