-- Tubes with a semaphore before them: their tasks are ready only while they hold a grant. A task stands in the semaphore
-- exactly while it is ready, taken, or would be ready with a grant. So whatever moved tasks says which in the end (`regate`), and
-- whatever moved places is followed.

-- Lets a task be ready, or wait for its semaphore.
local function set_gated(c, tube, id, holds)
    local task = S.task:get({ tube.number, id })
    if not task or delivery_of(tube, id) then
        return
    elseif task[STATE] == DELAYED and task[FLAG] == GATED and holds then
        move(tube, task, { { '=', STATE, READY }, { '=', FLAG, PLAIN } })
        settle(c, tube)
    elseif task[STATE] == READY and not holds then
        move(tube, task, { { '=', STATE, DELAYED }, { '=', FLAG, GATED } })
        settle(c, tube)
    end
end

-- After semaphores changed: who was let in is ready, who lost its grant is not.
function follow(c)
    local moved = c.moved
    c.moved = {}
    for _, task in ipairs(moved) do
        local of, id = tube_task(task)
        local tube = open_number(c, of)
        local s = tube and tube.o.semaphore and find_semaphore(c, tube.o.semaphore)
        if s then
            local place = place_of(s, task)
            set_gated(c, tube, id, place ~= nil and place[P_GRANT] ~= nil)
        end
    end
end

-- What a tube wants for one of its tasks: a rank to stand in line with, or its work goes on, or it is to leave.
local function want(tube, id)
    local task = S.task:get({ tube.number, id })
    if not task then
        return nil
    elseif delivery_of(tube, id) then
        return 'work'
    elseif task[STATE] == READY or task[FLAG] == GATED then
        return task[OWN] == nil and tonumber(task[PRI]) or -tonumber(task[OWN]) + 0
    end
    return nil
end

-- After tasks of a tube moved: brings them to where their semaphore has them. Does nothing for a tube without one.
function regate(c, tube, ids)
    local s = tube.o.semaphore and #ids > 0 and find_semaphore(c, tube.o.semaphore)
    if not s then
        return
    end
    for _, id in ipairs(ids) do
        local task, rank = gated_task(tube.number, id), want(tube, id)
        local place = place_of(s, task)
        if not place and type(rank) == 'number' then
            stand_in_line(c, s, task, rank)
        elseif place and (rank == nil or rank ~= 'work' and place[P_CLASS] == ASKED) then
            if place[P_GRANT] ~= nil then
                forget_events(s, task, place[P_GRANT])
            end
            if rank == nil then
                remove_place(c, s, place)
            else
                stand_back(c, s, place, s.cool_down)
            end
        end
        -- The tube may believe otherwise although nothing changed here.
        c.moved[#c.moved + 1] = task
    end
    settle_semaphore(c, s)
    follow(c)
end

-- Lets new tasks stand in line; answers where each stands.
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
