-- Shows tasks and tubes in answers.

local function reason_of(c, tube, task, delivery)
    if delivery then
        return { REASONS.running }
    elseif task[STATE] == DELAYED and task[FLAG] ~= GATED then
        return { REASONS.not_due, task[DUE] }
    elseif task[EXPIRES] <= c.now then
        return { REASONS.expired }
    elseif task[STATE] == DELAYED then
        return { REASONS.semaphore }
    elseif task[STATE] == BURIED then
        return { task[FLAG] == DEAD_LETTER and REASONS.used_up or REASONS.buried }
    elseif tube.o.paused then
        return { REASONS.paused }
    elseif tube.o.subqueues then
        local row = S.subqueue:get({ tube.number, task[SUBQUEUE] })
        if row and row[3] > 0 then
            return { REASONS.subqueue_busy }
        end
    end
    local next_at = tube.o.rate and pace.next_delivery(tube) or NEVER
    return next_at < NEVER and { REASONS.rate_limited, next_at } or NO_REASON
end

-- A task as answers show it. Only a peek shows its priority in the semaphore, its failures, its key and its number of attempts.
function view(c, tube, task, delivery, body)
    local row = task:totable()
    row[OWN] = NULL
    cut_optional(row)
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

-- Adds the name of the worker that holds a task.
local function show_worker(seen, delivery)
    if delivery and delivery[D_WORKER] ~= nil then
        seen[DELIVERY][5] = delivery[D_WORKER]
    end
end

-- Adds the failures of a task; in an answer they are in the place of its tube.
local function show_failures(c, seen, task)
    local failures = task[FAILURES]
    if failures ~= nil then
        seen[TUBE], c.bytes = failures, c.bytes + #failures
    end
end

-- Adds the key and the number of attempts of a task; in an answer they are in the places of the parts of its body and of the flag.
local function show_key(seen, task)
    if #task >= KEY then
        seen[PARTS], seen[FLAG] = given(task[KEY]) or NULL, given(task[OWN_ATTEMPTS]) or NULL
    end
end

-- A task that has just left its tube.
function view_done(c, tube, task, delivery, body)
    local row = view(c, tube, task, delivery, body)
    row[STATE], row[REASON] = DONE, { REASONS.finished }
    return row
end

function delivery_of(tube, id)
    return S.taken:get({ tube.number, id })
end

-- The stored tasks of these ids, by their places. Ids that follow each other are read in one step.
local function stored_tasks(tube, ids)
    local of, size, first, tasks = tube.number, #ids, tonumber(ids[1]), {}
    local is_range = size > 1
    for place = 2, size do
        is_range = is_range and ids[place] == first + place - 1
    end
    if not is_range then
        for place = 1, size do
            tasks[place] = S.task:get({ of, ids[place] })
        end
        return tasks
    end
    local rows = S.task:select({ of, first }, { iterator = 'GE', limit = size })
    local last = rows[size]
    if last and last[TUBE] == of and last[ID] == ids[size] then
        return rows
    end
    for at = 1, #rows do
        local row = rows[at]
        local place = tonumber(row[ID]) - first + 1
        if place > size or row[TUBE] ~= of then
            break
        end
        tasks[place] = row
    end
    return tasks
end

-- Refuses to show more bytes than one command may have.
local function refuse_bytes(c, tube, ids, tasks)
    local bytes = 0
    for place = 1, #ids do
        local task = tasks[place]
        bytes = bytes + (task and task[BYTES] or done_tasks.bytes(tube, ids[place]))
    end
    if bytes > BATCH_BYTES_MAX then
        return refuse('too_large', 'the size of the tasks to show, in bytes,', bytes, BATCH_BYTES_MAX, 'ask for fewer at a time')
    end
    c.bytes = c.bytes + bytes
end

function shown_tasks.refuse(c, tube, ids)
    return refuse_bytes(c, tube, ids, stored_tasks(tube, ids))
end

-- A task as a peek shows it.
local function peeked(c, tube, task, delivery)
    local seen = view(c, tube, task, delivery, body_of(tube, task))
    seen[OWN] = task[OWN]
    show_worker(seen, delivery)
    show_failures(c, seen, task)
    show_key(seen, task)
    if seen[STATE] == TAKEN then
        seen[DUE] = since_of(task)
    end
    return seen
end

-- Whether a task that is not taken is shown as it is stored, if it is ready: most are, and a table of each would cost much more.
function shown_tasks.are_stored(c, tube)
    return not tube.o.paused and not tube.o.rate and not tube.o.subqueues and first_moment(S.expiry, tube, 2) > c.now
end

-- Whether a task that is shown as it is stored if it is ready is so, and its body is in its row. Fields cost more than the rest of the answer,
-- so the state is read only if the tube has tasks in another one.
local function is_complete(tube, task)
    return #task == FLAG and task[DUE] == nil and task[PARTS] == 0
        and (tube.n.delayed == 0 and tube.n.buried == 0 or task[STATE] == READY)
end

-- A stored task as a peek shows it, taken or not; `stored` is whether ready ones are shown as they are stored.
function shown_tasks.peeked(c, tube, task, is_taken, stored)
    if stored and not is_taken and is_complete(tube, task) then
        return task
    end
    return peeked(c, tube, task, is_taken and delivery_of(tube, task[ID]) or nil)
end

verbs[9] = function(c, command)
    local tube, ids = open_tube(c, command[2]), command[3]
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    local tasks = stored_tasks(tube, ids)
    local refusal = refuse_bytes(c, tube, ids, tasks)
    if refusal then
        return refusal
    end
    local shown, stored, taken = {}, shown_tasks.are_stored(c, tube), nil
    for place = 1, #ids do
        local id, task = ids[place], tasks[place]
        if not taken or taken < id or place > 1 and id < ids[place - 1] then
            taken = positions.first_taken(tube.number, id)
        end
        if not task then
            local done = done_tasks.get(c, tube, id)
            shown[#shown + 1] = done and done_tasks.view(c, tube, done, true)
        else
            shown[#shown + 1] = shown_tasks.peeked(c, tube, task, taken == id, stored)
        end
    end
    return { REPLY.tasks, shown }
end

-- Shows taken tasks by id, without bodies.
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
        show_worker(seen, delivery)
        shown[#shown + 1] = seen
    end
    return { REPLY.tasks, shown }
end

-- Since when the oldest task that could be taken waits, whether or not the tube is paused.
local function oldest_ready(tube)
    local after, iterator = { tube.number }, 'GE'
    return oldest_of(function()
        local place = S.ready:select(after, { iterator = iterator, limit = 1 })[1]
        if not place or place[1] ~= tube.number then
            return nil
        end
        local task = S.task:get({ tube.number, place[3] })
        local since = since_of(task)
        -- A key without an id goes on to the next priority.
        after, iterator = { tube.number, place[2], since ~= task[CREATED] and place[3] or nil }, 'GT'
        return since
    end) or NULL
end

-- A tube with its counts and counters.
function info(tube)
    local n, calls = tube.n, {}
    if tube.changed or tube.o.rate then
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
    return { tube.name, tube.number, options, { n.ready, n.taken, n.buried, n.delayed, n.done, done_tasks.count(tube) }, calls, takeable(tube),
        n.next < NEVER and n.next or NULL, oldest_ready(tube) }
end

verbs[3] = function(c, command)
    local name = given(command[2])
    if name then
        local tube = open_tube(c, name)
        return tube and { REPLY.tubes, { info(tube) } } or refuse('tube_not_found', name)
    end
    local names, shown = {}, {}
    for _, row in S.tube:pairs() do
        -- By number, because this call may have created or renamed tubes.
        names[#names + 1] = row[1]
    end
    for place, of in ipairs(names) do
        shown[place] = info(open_number(c, of))
    end
    table.sort(shown, function(a, b) return a[1] < b[1] end)
    return { REPLY.tubes, shown }
end
