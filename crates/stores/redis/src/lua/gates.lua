-- Tubes with a semaphore before them: their tasks are ready only while they hold a grant. One call then works on keys of several
-- tags, so such tubes are on a single Redis only.
--
-- A task stands in the semaphore exactly while it is ready, taken, or would be ready with a grant. So whatever moved tasks ends
-- with `regate`, and whatever moved places with `follow`.

local MARK = '\128'

-- The number under which a task of a tube stands in its semaphore.
local function gated_task(tube, id)
    return MARK .. struct.pack('>I4', tube.options.number) .. id
end

gates.task = gated_task

-- The tube that lives there.
function gates.tube(call, home)
    return call.tubes[home] or gates.open_tube(call, '{' .. call.prefix .. ':' .. home .. '}', '')
end

-- The same, if it is still that of this task.
local function tube_of(call, home, task)
    local tube = gates.tube(call, home)
    if tube and not tube.dropped and gated_task(tube, string.sub(task, 6)) == task then
        return tube
    end
end

-- Opens the tube of a task, if it is one. Answers whether that brought the tube, and so this semaphore, in order after all
-- servers were gone: whoever is about to decide decides again.
function gates.rouse(s, task, place)
    if #task == 8 or s.call.tubes[place.home] then
        return false
    end
    local tube = gates.tube(s.call, place.home)
    return tube and tube.restarted
end

-- Whether this is a task of a tube that nobody works on: it can lose its grant without a word.
function gates.is_idle(s, task, place)
    if #task == 8 then
        return false
    end
    local tube, id = tube_of(s.call, place.home, task), string.sub(task, 6)
    if not tube then
        return true
    end
    load(tube, { id })
    return not tube.tasks[id] or tube.tasks[id].state ~= TAKEN
end

local function set_gated(tube, id, task, holds)
    if task.state == (holds and GATED or READY) then
        leave(tube, id, task)
        task.state = holds and READY or GATED
        enter(tube, id, task)
    end
end

-- After a semaphore changed: who was let in is ready, who lost its grant is not.
function gates.follow(s)
    local moved = s.moved
    s.moved = {}
    for _, task in ipairs(moved) do
        local place, id = sem.place(s, task), string.sub(task, 6)
        local tube = place and tube_of(s.call, place.home, task)
        if tube then
            load(tube, { id })
            if tube.tasks[id] then
                set_gated(tube, id, tube.tasks[id], place.status >= HOLDS)
            end
        end
    end
end

-- How important a task is: what its put said, or the less the larger its number.
local function priority_of(record)
    if record.own then
        return (struct.unpack('<d', record.own))
    end
    return 0 - struct.unpack('>I8', record.pri)
end

-- What a tube wants for one of its tasks.
local function want(s, tube, id)
    local task, record = gated_task(tube, id), tube.tasks[id]
    local place, state = sem.place(s, task), record and record.state
    if state == READY or state == GATED then
        if not place then
            sem.stand_in_line(s, task, priority_of(record), tube.home)
        elseif place.status == ASKED then
            outbox.forget(s, task, place.grant)
            sem.stand_back(s, task, place, s.rules.cool_down)
        end
    elseif place and state ~= TAKEN then
        if place.status >= HOLDS then
            outbox.forget(s, task, place.grant)
        end
        sem.remove(s, task, place)
    end
    -- The tube may believe otherwise although nothing changed here.
    s.moved[#s.moved + 1] = task
end

-- After tasks of a tube moved: brings them to where their semaphore has them. Does nothing for a tube without one.
function gates.regate(tube, ids)
    if tube.options.semaphore == '' or #ids == 0 then
        return
    end
    load(tube, ids)
    local s = sem.open(tube.call, tube.options.semaphore)
    if not s then
        -- A gate that is lost is shut.
        for _, id in ipairs(ids) do
            if tube.tasks[id] then
                set_gated(tube, id, tube.tasks[id], false)
            end
        end
        return
    end
    for _, id in ipairs(ids) do
        want(s, tube, id)
    end
    settle.all(s)
    gates.follow(s)
end

-- All tasks of a tube with a semaphore, by id.
function gates.all_ids(tube)
    if tube.options.semaphore == '' then
        return {}
    end
    flush(tube)
    local ids = redis.call('HKEYS', tube.base .. ':t')
    table.sort(ids)
    return ids
end

