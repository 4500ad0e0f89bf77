-- How tasks are shown.

local function reason_of(c, tube, task, delivery)
    if delivery then
        return { WHY.running }
    elseif task[STATE] == DELAYED and task[FLAG] ~= GATED then
        return { WHY.not_due, task[DUE] }
    elseif task[EXPIRES] <= c.now then
        return { WHY.expired }
    elseif task[STATE] == DELAYED then
        return { WHY.semaphore }
    elseif task[STATE] == BURIED then
        return { task[FLAG] == DEAD_LETTER and WHY.used_up or WHY.buried }
    elseif tube.o.paused then
        return { WHY.paused }
    elseif tube.o.subqueues then
        local row = S.subqueue:get({ tube.number, task[SUBQUEUE] })
        return { row and row[3] > 0 and WHY.subqueue_busy or WHY.waits }
    end
    return NO_REASON
end

-- A task as answers show it. How important it is to a semaphore is for those to know who look at it.
function view(c, tube, task, delivery, body)
    local row = task:totable()
    row[OWN] = NULL
    row[BODY] = body or NULL
    row[REASON] = reason_of(c, tube, task, delivery)
    if delivery or task[STATE] ~= DELAYED or task[FLAG] == GATED then
        row[DUE] = NULL
    end
    if delivery then
        row[STATE] = TAKEN
        row[DELIVERY] = { delivery[D_LEASE], delivery[D_UNTIL], delivery[D_START], delivery[D_SESSION] }
    end
    return row
end

-- One that has just left its tube.
function view_done(c, tube, task, delivery, body)
    local row = view(c, tube, task, delivery, body)
    row[STATE], row[REASON] = DONE, { WHY.finished }
    return row
end

function delivery_of(tube, id)
    return S.taken:get({ tube.number, id })
end

-- Refuses to show more bytes in one answer than may travel in one command.
function refuse_shown(c, tube, ids)
    local bytes = 0
    for _, id in ipairs(ids) do
        local task = S.task:get({ tube.number, id })
        bytes = bytes + (task and task[BYTES] or 0)
    end
    if bytes > BYTES_MAX then
        return refuse('too_large', 'the size of the tasks to show, in bytes,', bytes, BYTES_MAX, 'ask for fewer at a time')
    end
    c.bytes = c.bytes + bytes
end

verbs[9] = function(c, command)
    local tube, ids = open_tube(c, command[2]), command[3]
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    local refusal = refuse_shown(c, tube, ids)
    if refusal then
        return refusal
    end
    local shown = {}
    for _, id in ipairs(ids) do
        local task = S.task:get({ tube.number, id })
        if task then
            local seen = view(c, tube, task, delivery_of(tube, id), body_of(tube, task))
            seen[OWN] = task[OWN]
            if seen[STATE] == TAKEN then
                seen[DUE] = since_of(task)
            end
            shown[#shown + 1] = seen
        end
    end
    return { REPLY.tasks, shown }
end

-- Who holds what, by id, without bodies.
verbs[10] = function(c, command)
    local tube, limit, shown = open_tube(c, command[2]), tonumber(command[3]), {}
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    for _, delivery in S.taken:pairs({ tube.number }) do
        if #shown >= limit then
            break
        end
        local task = S.task:get({ tube.number, delivery[D_ID] })
        local seen = view(c, tube, task, delivery, nil)
        seen[DUE] = since_of(task)
        shown[#shown + 1] = seen
    end
    return { REPLY.tasks, shown }
end

-- Most tasks that are looked at to find the oldest, as in the core.
local OLDEST_LOOKED_MAX = 256

-- Since when the oldest task waits that could be taken, pauses aside. Within a priority ids are in the order of puts, so behind
-- the first task that was ready at once nobody waits for longer; in front of it may be some that were delayed or
-- given back.
local function oldest_ready(tube)
    local place, oldest = S.ready:select({ tube.number }, { limit = 1 })[1], nil
    for _ = 1, OLDEST_LOOKED_MAX do
        if not place or place[1] ~= tube.number then
            break
        end
        local task = S.task:get({ tube.number, place[3] })
        local since = since_of(task)
        oldest = (not oldest or since < oldest) and since or oldest
        -- Without an id on to the next priority.
        local after = since == task[CREATED] and { tube.number, place[2] } or { tube.number, place[2], place[3] }
        place = S.ready:select(after, { iterator = 'GT', limit = 1 })[1]
    end
    return oldest or NULL
end

-- A tube with what it has and what was done to it.
function info(tube)
    local n, calls = tube.n, {}
    if tube.changed then
        n.next = next_moment(tube)
    end
    for place, call in ipairs(CALLS) do
        calls[place] = n[call]
    end
    local options = {}
    for place, value in ipairs(tube.options) do
        options[place] = value
    end
    options[O.queue_num] = tube.queue_num or NULL
    return { tube.name, tube.number, options, { n.ready, n.taken, n.buried, n.delayed, n.done }, calls, takeable(tube),
        n.next < FAR and n.next or NULL, oldest_ready(tube) }
end

verbs[3] = function(c, command)
    local name = given(command[2])
    if name then
        local tube = open_tube(c, name)
        return tube and { REPLY.tubes, { info(tube) } } or refuse('tube_not_found', name)
    end
    local names, shown = {}, {}
    for _, row in S.tube:pairs() do
        -- One that this call made or renamed is there under its new name.
        names[#names + 1] = row[1]
    end
    for place, of in ipairs(names) do
        shown[place] = info(open_number(c, of))
    end
    table.sort(shown, function(a, b) return a[1] < b[1] end)
    return { REPLY.tubes, shown }
end
