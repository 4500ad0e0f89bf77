-- Connects tubes with their semaphore: tasks of such a tube are ready only while they hold a grant. A task is in the semaphore exactly
-- while it is ready, taken, or would be ready with a grant (gated). So code that moves tasks ends with `regate`, and code that changes
-- entries ends with `follow`.

-- Makes a task ready, or gated.
local function set_gated(c, tube, id, holds)
    local task = S.task:get({ tube.number, id })
    if not task or delivery_of(tube, id) then
        return
    elseif task[STATE] == DELAYED and task[FLAG] == GATED and holds then
        move(tube, task, { { '=', STATE, READY }, { '=', FLAG, PLAIN } })
        mark_changed(c, tube)
    elseif task[STATE] == READY and not holds then
        move(tube, task, { { '=', STATE, DELAYED }, { '=', FLAG, GATED } })
        mark_changed(c, tube)
    end
end

-- After semaphores changed: tasks with a new grant are ready, tasks that lost theirs are gated.
function follow(c)
    local moved = c.moved
    c.moved = {}
    for _, task in ipairs(moved) do
        local of, id = tube_task(task)
        local tube = open_number(c, of)
        local s = tube and tube.o.semaphore and find_semaphore(c, tube.o.semaphore)
        if s then
            local entry = sem.find(s, task)
            set_gated(c, tube, id, entry ~= nil and entry[E_GRANT] ~= nil)
        end
    end
end

-- The state of a tube's task as the rules want it, and its priority in the semaphore if it waits: what its put says, or the lower the
-- larger the number of its priority in the tube.
local function state_of(tube, id)
    local task = S.task:get({ tube.number, id })
    if not task then
        return nil
    elseif delivery_of(tube, id) then
        return 'taken'
    elseif task[STATE] == READY or task[FLAG] == GATED then
        return 'waits', task[OWN] == nil and -tonumber(task[PRI]) + 0 or tonumber(task[OWN])
    end
    return nil
end

-- After tasks of a tube moved: brings their semaphore in line with them. Does nothing for a tube without one.
function regate(c, tube, ids)
    local s = tube.o.semaphore and #ids > 0 and find_semaphore(c, tube.o.semaphore)
    if not s then
        return
    end
    for _, id in ipairs(ids) do
        local task = gated_task(tube.number, id)
        rules.follow_tube(s, task, state_of(tube, id))
        -- The tube may have another state although nothing changed here.
        c.moved[#c.moved + 1] = task
    end
    rules.admit_waiters(s)
    follow(c)
end

-- How many members of the semaphore before a tube get a grant before this task, which waits for one; nil without a semaphore.
function positions.gate_ahead(c, tube, id, most)
    local s = tube.o.semaphore and find_semaphore(c, tube.o.semaphore)
    local entry = s and sem.find(s, gated_task(tube.number, id))
    return s and (entry and sem.waiting_before(s, entry, most) or 0) or nil
end

-- Adds new tasks to their semaphore; answers the state of each.
function gate_new(c, tube, first, size)
    local ids, placed = {}, {}
    for place = 1, size do
        ids[place] = first + place - 1
    end
    regate(c, tube, ids)
    for place, id in ipairs(ids) do
        placed[place] = { id, S.task:get({ tube.number, id })[STATE] }
    end
    return placed
end
