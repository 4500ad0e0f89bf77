-- Creates and finds the spaces. Temporary spaces are not written to disk, not replicated, and empty after a restart.

local S = {}

local function parts_of(words)
    local parts = {}
    for field, kind in string.gmatch(words, '(%d+):?(%a*)') do
        parts[#parts + 1] = { tonumber(field), kind ~= '' and kind or 'unsigned' }
    end
    return parts
end

-- Each with its indexes; the first is the key.
local SPACES = {
    -- Global values: the version of the format, the next lease number, how long sessions without connections last.
    meta = { '1:string' },
    -- Number, name, options, the next id, the number of its queue.
    tube = { '1', '2:string' },
    task = { '15 1' },
    -- Parts of bodies that are too large for the row of their task.
    body = { '1 2 3' },
    -- Takeable tasks: tube, pri, id.
    ready = { '1 2 3' },
    taken = { '5 6', '5 2 6' },
    delayed = { '1 2 3' },
    buried = { '1 2 3' },
    -- Gated tasks, which wait for the semaphore of their tube: tube, id.
    gated = { '1 2' },
    -- When tasks that are not taken expire: tube, moment, id.
    expiry = { '1 2 3' },
    -- Ready tasks of sub-queues: tube, sub-queue, pri, id.
    line = { '1 2:string 3 4' },
    -- Tube, sub-queue, how many tasks run, and pri and id of its task among the takeable ones.
    subqueue = { '1 2:string' },
    -- Session, tube, id.
    held = { '1:string 2 3' },
    -- Session, connections in all, when it ends, and whether its last server was declared dead.
    session = { '1:string', '3 1:string' },
    -- Server, session, connections there.
    connection = { '1:string 2:string' },
    -- Server, its last contact, and the last of its calls that is refused.
    server = { '1:string' },
    -- Number, key, options, last grant, moment to look again, next deadline, numbers of entries by class, events.
    semaphore = { '1', '2:string', '6 1' },
    -- Entries of semaphores: semaphore, task, class, rank, number of arrival, grant and so on, deadline.
    place = { '1 2', '1 3 4:number 5', '1 13 2' },
    -- Number, semaphore, task, grant, kind, deliveries, when it is due, whether it waits behind another event of its grant.
    event = { '1', '8 7 1', '2 8 7 1', '2 3 4 1' },
    -- Done tasks that are kept, by id and by the time of their end. See done.lua.
    done = { '1 2', '1 3 2' },
    -- Tube with done tasks, when some are to be removed, and how many there are.
    kept = { '1', '2 1', temporary = true },
    -- Unique keys: tube, key, the task that holds it. See keys.lua.
    key = { '1 2:string' },
    -- Keys of ended tasks: tube, task, the moment at which the key is free, the key.
    ended = { '1 2', '1 3 2' },
    -- Tube with keys of ended tasks, when some are to be forgotten, and how many there are.
    ended_count = { '1', '2 1', temporary = true },
    -- Tubes with a rate limit of which tokens were used: tube, level, moment of that level.
    bucket = { '1' },
    -- Schedules: name, when it is due, and the schedule as answers show it.
    schedule = { '1:string', '2 1:string' },
    -- Tube, next deadline, numbers of tasks by state, and counters.
    live = { '1', '2 1', temporary = true },
    -- State of this instance since it became writable.
    here = { '1', temporary = true },
}

local function full_name(name)
    return PREFIX .. '_' .. name
end

local function make_space(name, indexes)
    local space = box.schema.space.create(full_name(name), { temporary = indexes.temporary })
    for place, words in ipairs(indexes) do
        space:create_index('i' .. place, { parts = parts_of(words), unique = true })
    end
end

-- Creates the spaces that do not exist, or none. The format is the first one until a later feature is used.
local function make_spaces()
    local is_new = box.space[full_name('meta')] == nil
    box.begin()
    local made, why = pcall(function()
        for name, indexes in pairs(SPACES) do
            if box.space[full_name(name)] == nil then
                make_space(name, indexes)
            end
        end
        if is_new then
            box.space[full_name('meta')]:insert({ 'format', 1 })
        end
    end)
    if not made then
        box.rollback()
        error(why)
    end
    box.commit()
end

-- Finds the spaces; answers whether they exist.
local function find_spaces()
    if box.space[full_name('meta')] == nil then
        return false
    end
    for name in pairs(SPACES) do
        S[name] = box.space[full_name(name)]
    end
    return true
end

local function read_meta(key)
    local row = S.meta:get(key)
    return row and number(row[2])
end

local function write_meta(key, value)
    S.meta:replace({ key, value })
end

-- The lowest number that no row of a space has: numbers are part of keys and stay small.
local function free_number(space)
    local last, size = space.index[0]:max(), space:len()
    if not last or last[1] == size - 1 then
        return size
    end
    local free = 0
    for _, row in space:pairs() do
        if row[1] > free then
            break
        end
        free = row[1] + 1
    end
    return free
end
