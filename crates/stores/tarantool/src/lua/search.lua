-- Searches the bodies of tasks with consecutive ids for certain bytes, and shows those that have them.

local bit = require('bit')

local UNFINISHED = bit.lshift(1, DONE) - 1

-- The tasks of the tube with these ids, in their order.
local function tasks_between(of, first, last)
    local rows = S.task:select({ of, first }, { iterator = 'GE', limit = last - first + 1 })
    for place = #rows, 1, -1 do
        local row = rows[place]
        if row[TUBE] == of and row[ID] <= last then
            break
        end
        rows[place] = nil
    end
    return rows
end

-- A search: what it looks for, and what it found so far. Other states and moments are read only if they matter, because fields cost more than
-- the comparison.
local function new_search(c, tube, states, run)
    local every = bit.band(states, UNFINISHED) == UNFINISHED and first_moment(S.expiry, tube, 2) > c.now
    return { tube = tube, states = states, run = run, every = every, stored = shown_tasks.are_stored(c, tube), shown = {}, ranks = {}, compared = 0,
        bytes = 0, last = NULL, taken = nil }
end

-- Whether a task is taken. Ids are asked for in ascending order.
local function is_taken(search, id)
    if not search.taken or search.taken < id then
        search.taken = positions.first_taken(search.tube.number, id)
    end
    return search.taken == id
end

-- Whether a task has one of the states and is not expired.
local function is_compared(c, search, task)
    if search.every then
        return true
    end
    local taken = is_taken(search, task[ID])
    local state = taken and TAKEN or task[STATE]
    if bit.band(search.states, bit.lshift(1, state)) == 0 then
        return false
    end
    return taken or task[EXPIRES] > c.now or task[STATE] == DELAYED and task[FLAG] ~= GATED
end

local function add(search, seen)
    local place = #search.shown + 1
    search.shown[place], search.ranks[place] = seen, search.compared
end

-- Compares a stored task. One whose body is in parts is shown: to join them would cost more.
local function compare(c, search, task)
    if not is_compared(c, search, task) then
        return
    end
    local id, body = task[ID], task[BODY]
    local payload = text(type(body) == 'table' and body[1] or body)
    local is_here = type(payload) == 'string'
    search.compared, search.last = search.compared + 1, id
    search.bytes = search.bytes + (is_here and #payload or task[BYTES])
    if not is_here or string.find(payload, search.run, 1, true) then
        c.bytes = c.bytes + task[BYTES]
        add(search, shown_tasks.peeked(c, search.tube, task, is_taken(search, id), search.stored))
    end
end

-- Shows a done task without a comparison.
local function show_done(c, search, id)
    local done = done_tasks.get(c, search.tube, id)
    if not done then
        return
    end
    local bytes = done_tasks.bytes(search.tube, id)
    search.compared, search.last, search.bytes = search.compared + 1, id, search.bytes + bytes
    c.bytes = c.bytes + bytes
    add(search, done_tasks.view(c, search.tube, done, true))
end

-- Compares the tasks with these ids, and shows done ones.
local function compare_with_done(c, search, tasks, first, last)
    local place = 1
    for id = first, last do
        local task = tasks[place]
        if task and task[ID] == id then
            compare(c, search, task)
            place = place + 1
        else
            show_done(c, search, id)
        end
    end
end

verbs[23] = function(c, command)
    local tube, first = open_tube(c, command[2]), tonumber(command[3])
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    local states, last = tonumber(command[5]), first + tonumber(command[4]) - 1
    local search, tasks = new_search(c, tube, states, text(command[6])), tasks_between(tube.number, first, last)
    if tube.o.keep_done and bit.band(states, bit.lshift(1, DONE)) ~= 0 then
        compare_with_done(c, search, tasks, first, last)
    else
        for place = 1, #tasks do
            compare(c, search, tasks[place])
        end
    end
    local bytes = search.bytes
    if bytes > BATCH_BYTES_MAX then
        return refuse('too_large', 'the size of the tasks to show, in bytes,', bytes, BATCH_BYTES_MAX, 'ask for fewer at a time')
    end
    return { REPLY.found, search.shown, search.ranks, search.compared, search.last, bytes }
end
