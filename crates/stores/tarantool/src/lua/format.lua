-- Raises the stored format when a feature is first used, so that programs of earlier versions can work beside this one until then. Format 2
-- has done tasks that are kept; format 3 has unique keys, retry policies, rate limits, tasks with their own number of attempts, and schedules.

-- Creates the spaces that a database of an earlier version does not have. Without the right to create them the rest works.
function formats.prepare()
    local is_complete = true
    for name in pairs(SPACES) do
        is_complete = is_complete and box.space[full_name(name)] ~= nil
    end
    if is_complete then
        return
    end
    local made, why = pcall(make_spaces)
    if not made and (type(why) ~= 'cdata' or why.code ~= box.error.ACCESS_DENIED) then
        error(why, 0)
    end
end

-- Whether a library has our own tubes. That of an existing tarantool/queue imports nothing. One that is refused by another library already
-- fails here.
local function is_concerned(part)
    local done, import = pcall(function() return part.import_tasks end)
    return done and import ~= nil
end

-- Refuses the calls of libraries of an earlier format, once it is raised: they would lose what it adds. Their servers connect again, and learn
-- why they are refused.
local function refuse_earlier()
    for name, all in pairs(_G) do
        local part = type(name) == 'string' and string.match(name, '^taskyard_1_%x+$') and all.parts[PREFIX]
        local known = part and (rawget(part, 'format') or 1)
        if part and known < FORMAT and is_concerned(part) then
            all.parts[PREFIX] = setmetatable({ format = FORMAT }, { __index = function(_, verb)
                local stored = read_meta('format')
                if stored > known then
                    box.error({ code = box.error.NO_SUCH_PROC, reason = name .. ': the stored format is ' .. stored .. ' now' })
                end
                return part[verb]
            end })
        end
    end
end

-- A feature of this format is about to be used, which needs this space. Answers a refusal if it cannot be stored.
function formats.need(wanted, space, what)
    if not S[space] then
        find_spaces()
    end
    if not S[space] then
        return refuse('invalid', what .. " cannot be stored: space '" .. full_name(space)
            .. "' does not exist, and this user may not create it; run `taskyard migrate` as its owner")
    end
    if read_meta('format') < wanted then
        write_meta('format', wanted)
        refuse_earlier()
    end
end

-- After this instance started or became writable: another instance may have created spaces.
function formats.find_spaces()
    if not S.done or not S.key then
        find_spaces()
    end
end
