-- Schedules: rules that add tasks to a tube at certain times. The engine computes the times; `stored_schedule.rs` of the core describes them.
--
-- A schedule is stored as it is answered, behind its name and the moment at which it is due.

-- Positions of the parts of a schedule. OVERLAP is this if a task of an earlier time prevents the next one.
local INTO, OVERLAP, PAUSED, FIRED, SKIPPED, NEXT, LAST, SIZE = 2, 6, 7, 8, 9, 10, 11, 12
local SKIP = 1

-- Numbers of the commands and of their replies.
local SET, GET, LIST_NAMES, DUE_NOW, REMOVE, PAUSE, FIRE = 0, 1, 2, 3, 4, 5, 6
local IS_SET, SHOWN, REMOVED, HAS_FIRED, NOT_FIRED, ARE_DUE = 0, 1, 2, 3, 4, 5

local function answer(...)
    return { REPLY.schedule, { ... } }
end

-- The schedule with this name.
local function find(name)
    local row = S.schedule and S.schedule:get(name)
    return row and row[3]
end

local function begin()
    return formats.need(3, 'schedule', 'schedules')
end

local function write(schedule)
    local due = STORED_NEVER
    if not schedule[PAUSED] and schedule[NEXT] ~= nil then
        due = stamp(math.max(moment(schedule[NEXT]), 0))
    end
    S.schedule:replace({ schedule[1], due, schedule })
end

local commands = {}

commands[SET] = function(c, request)
    local schedule, only_new, keep_paused = whole_options(request[2], SIZE), request[3], request[4]
    local name = schedule[1]
    local before = find(name)
    if only_new and before then
        return refuse('schedule_exists', name)
    elseif c.is_invalid then
        return INVALID
    elseif not open_tube(c, schedule[INTO]) then
        return refuse('tube_not_found', schedule[INTO])
    end
    local refusal = begin()
    if refusal then
        return refusal
    elseif not before and S.schedule:len() >= {{SCHEDULES_MAX}} then
        return refuse('too_many_schedules', {{SCHEDULES_MAX}})
    end
    schedule[LAST], schedule[FIRED], schedule[SKIPPED] = NULL, 0, 0
    if before then
        schedule[LAST], schedule[FIRED], schedule[SKIPPED] = before[LAST], before[FIRED], before[SKIPPED]
    end
    if keep_paused then
        schedule[PAUSED] = before ~= nil and before[PAUSED]
    end
    write(schedule)
    return answer(IS_SET, before == nil)
end

commands[GET] = function(_, request)
    local schedule = find(request[2])
    return schedule and answer(SHOWN, { schedule }) or refuse('schedule_not_found', request[2])
end

-- Schedules by name, after this one.
local function page_after(name, limit)
    local page = {}
    for place, row in ipairs(S.schedule and S.schedule:select(name, { iterator = name and 'GT' or 'ALL', limit = limit }) or {}) do
        page[place] = row[3]
    end
    return page
end

commands[LIST_NAMES] = function(_, request)
    return answer(SHOWN, page_after(given(request[3]), tonumber(request[2])))
end

-- When the first schedule is due that is due after this moment, or at all.
local function first_due(after)
    local first = S.schedule and S.schedule.index[1]:select(after, { iterator = after and 'GT' or 'ALL', limit = 1 })[1]
    return first and first[2] < STORED_NEVER and moment(first[2]) or NULL
end

commands[DUE_NOW] = function(c, request)
    local page, range = {}, { limit = tonumber(request[2]), offset = tonumber(request[3]) }
    for place, row in ipairs(S.schedule and S.schedule.index[1]:select({}, range) or {}) do
        if row[2] > c.now then
            break
        end
        page[place] = row[3]
    end
    return answer(ARE_DUE, c.now, page, first_due({ c.now }))
end

commands[REMOVE] = function(_, request)
    if not find(request[2]) then
        return refuse('schedule_not_found', request[2])
    end
    S.schedule:delete(request[2])
    return answer(REMOVED)
end

commands[PAUSE] = function(_, request)
    local schedule = find(request[2])
    if not schedule then
        return refuse('schedule_not_found', request[2])
    end
    schedule[PAUSED] = request[3]
    write(schedule)
    return answer(SHOWN, { schedule })
end

-- Gives the tasks of a schedule the same key, so that they do not overlap.
local function add_keys(name, puts)
    for _, new in ipairs(puts) do
        for place = 2, 8 do
            new[place] = given(new[place]) or NULL
        end
        new[9] = { 'schedule:' .. name, 0 }
    end
end

-- The tasks of the reply to a put, and how many of them existed.
local function placed_by(reply)
    local placed, existing = reply[2], 0
    if reply[1] == REPLY.run then
        placed = {}
        for place = 1, reply[3] do
            placed[place] = { reply[2] + place - 1, READY }
        end
    end
    for _, one in ipairs(placed) do
        existing = existing + (one[3] and 1 or 0)
    end
    return placed, existing
end

-- Adds the tasks of a schedule and sets its next time, if the expected one is still the next.
commands[FIRE] = function(c, request)
    local name, expected, puts, skipped, next_at = unpack(request, 2, 6)
    local schedule = find(name)
    if not schedule then
        return refuse('schedule_not_found', name)
    elseif #puts > {{SCHEDULE_PUTS_MAX}} then
        return INVALID
    elseif schedule[PAUSED] or moment(schedule[NEXT]) ~= moment(expected) then
        c.follows = true
        return answer(NOT_FIRED)
    elseif c.is_invalid then
        return INVALID
    end
    local placed, existing = {}, 0
    if #puts > 0 then
        if schedule[OVERLAP] == SKIP then
            add_keys(name, puts)
        end
        local reply = verbs[4](c, { 4, schedule[INTO], puts })
        if reply[1] == REPLY.refused then
            return reply
        end
        placed, existing = placed_by(reply)
        schedule[LAST] = #placed > existing and c.now or schedule[LAST]
    end
    schedule[FIRED] = tonumber(schedule[FIRED]) + #placed - existing
    schedule[SKIPPED] = tonumber(schedule[SKIPPED]) + tonumber(skipped) + existing
    schedule[NEXT] = given(next_at) or NULL
    write(schedule)
    return answer(HAS_FIRED, placed)
end

verbs[21] = function(c, command)
    local request = command[2]
    return commands[request[1]](c, request)
end

-- When the next schedule is due.
function schedules.next_due()
    return first_due()
end

-- Schedules by name after this one, at most so many, as a command that shows them answers.
function schedules.export(name, limit)
    return answer(SHOWN, page_after(name, limit))
end

-- Adds schedules of another store, which are in commands that set them.
function schedules.import(sets)
    local refusal = #sets > 0 and begin()
    if refusal then
        error(refusal[3], 0)
    end
    for _, command in ipairs(sets) do
        local schedule = whole_options(command[2][2], SIZE)
        if find(schedule[1]) then
            error("schedule '" .. schedule[1] .. "' exists already", 0)
        elseif S.schedule:len() >= {{SCHEDULES_MAX}} then
            error('too many schedules', 0)
        end
        write(schedule)
    end
end
