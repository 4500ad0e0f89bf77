-- Where things are kept. Spaces of this server's life alone (`temporary`) are not written to disk and not replicated.

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
    -- Words about all: the version, the next lease number, how long sessions without connections last.
    meta = { '1:string' },
    -- Number, name, options, the next id, the number of its queue.
    tube = { '1', '2:string' },
    task = { '15 1' },
    -- Bodies that are too large to be copied with their task, in parts.
    body = { '1 2 3' },
    -- What can be taken: tube, pri, id.
    ready = { '1 2 3' },
    taken = { '5 6', '5 2 6' },
    delayed = { '1 2 3' },
    buried = { '1 2 3' },
    -- What waits for the semaphore of its tube: tube, id.
    gated = { '1 2' },
    -- When tasks that nobody holds die: tube, moment, id.
    expiry = { '1 2 3' },
    -- Ready tasks of sub-queues: tube, sub-queue, pri, id.
    line = { '1 2:string 3 4' },
    -- Tube, sub-queue, how many run, and pri and id of what stands for it among the ready.
    subqueue = { '1 2:string' },
    -- Session, tube, id.
    held = { '1:string 2 3' },
    -- Session, connections in all, when it ends.
    session = { '1:string', '3 1:string' },
    -- Server, session, connections there.
    connection = { '1:string 2:string' },
    -- Server, when it was last heard, and the last of its calls that is not done any more.
    server = { '1:string' },
    -- Number, key, options, last grant, moment to look again, next moment, who stands where, events.
    semaphore = { '1', '2:string', '6 1' },
    -- Semaphore, task, class, rank, number of arrival, and what else there is to it; its next moment comes last.
    place = { '1 2', '1 3 4:number 5', '1 13 2' },
    -- Number, semaphore, task, grant, kind, attempts, when it is due, whether it waits behind another of its grant.
    event = { '1', '8 7 1', '2 8 7 1', '2 3 4 1' },
    -- Tube, next moment, then how many tasks stand where and what was done.
    live = { '1', '2 1', temporary = true },
    -- What this instance knows of itself since it can be written to.
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

-- Makes all spaces, or none.
local function make_spaces()
    box.begin()
    local made, why = pcall(function()
        for name, indexes in pairs(SPACES) do
            make_space(name, indexes)
        end
        box.space[full_name('meta')]:insert({ 'format', FORMAT })
    end)
    if not made then
        box.rollback()
        error(why)
    end
    box.commit()
end

-- Finds the spaces; whether they are there.
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
