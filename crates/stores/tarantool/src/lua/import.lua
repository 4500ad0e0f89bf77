-- Imports from another store: tasks by id, into a tube with a temporary name. In the end the tube gets its name.

-- Positions of the fields of a task in the request.
local N_ID, N_STATE, N_PRI, N_CREATED, N_EXPIRES, N_TTR, N_ATTEMPTS, N_DUE, N_PREVIOUS, N_SUBQUEUE, N_OWN, N_FLAG, N_PAYLOAD, N_META,
    N_FAILURES, N_FINISHED, N_KEY, N_UNIQUE_FOR, N_OWN_ATTEMPTS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19

local function optional_moment(value)
    return value == nil and NULL or stamp(moment(value))
end

-- Adds the key and the number of attempts to the row of a task.
local function add_key(tube, row, new)
    local key, attempts_max = given(new[N_KEY]), given(new[N_OWN_ATTEMPTS])
    if not key and not attempts_max then
        return
    end
    local refusal = keys.begin()
    if refusal then
        error(refusal[3], 0)
    end
    row[FAILURES], row[KEY], row[UNIQUE_FOR] = row[FAILURES] or NULL, key or NULL, given(new[N_UNIQUE_FOR]) or NULL
    row[OWN_ATTEMPTS] = attempts_max
    -- A done task does not hold its key.
    if key and row[STATE] ~= DONE then
        keys.import(tube, row[ID], key)
    end
end

local function import_task(c, tube, new)
    local id, subqueue = tonumber(new[N_ID]), given(new[N_SUBQUEUE])
    if id < tube.next_id or id > TASK_ID_MAX or (subqueue ~= nil) ~= tube.o.subqueues then
        error(string.format("task %d cannot be imported into tube '%s'", id, tube.name), 0)
    end
    local row = { id, new[N_STATE], new[N_PRI], stamp(moment(new[N_CREATED])), stamp(moment(new[N_EXPIRES])), tonumber(new[N_TTR]),
        new[N_ATTEMPTS], NO_REASON, NULL, NULL, optional_moment(new[N_PREVIOUS]), optional_moment(new[N_DUE]), subqueue or NULL,
        given(new[N_OWN]) or NULL, tube.number, 0, 0, new[N_FLAG], text(given(new[N_FAILURES])) }
    keep_body(tube, row, text(new[N_PAYLOAD]), text(given(new[N_META])))
    add_key(tube, row, new)
    if new[N_STATE] == DONE then
        done_tasks.import(c, tube, row, text(new[N_FINISHED]), row[DUE])
    else
        S.task:insert(row)
        enter(tube, row)
    end
    tube.next_id = id + 1
end

-- The tube that is imported.
local function staged(c, name)
    local tube = open_tube(c, name)
    if not tube then
        error("tube '" .. name .. "' does not exist", 0)
    elseif is_full() then
        box.error(box.error.MEMORY_ISSUE, 0, 'taskyard', 'tasks')
    end
    return tube
end

-- Tasks with their ids, which must be greater than those of the tube.
function imports.tasks(c, name, tasks)
    local tube = staged(c, name)
    for place = 1, #tasks do
        import_task(c, tube, tasks[place])
    end
    tube.renewed = true
    mark_changed(c, tube)
end

-- Keys of ended tasks: id, the moment at which the key is free, the key.
function imports.ended_keys(c, name, ended)
    local tube, refusal = staged(c, name), keys.begin()
    if refusal then
        error(refusal[3], 0)
    end
    for _, row in ipairs(ended) do
        keys.import_ended(tube, unpack(row, 1, 3))
    end
end

-- Gives a tube the name, options and numbers of its original.
function imports.tube(c, row)
    local came, name, temporary, capacity, paused, semaphore, queue_num, next_id, done, calls, retry, rate, level, at = unpack(row, 1, 14)
    local tube = open_tube(c, came)
    if not tube then
        error("tube '" .. came .. "' does not exist", 0)
    elseif open_tube(c, name) then
        error("tube '" .. name .. "' exists already", 0)
    elseif refuse_queue_num(tube.number, given(queue_num)) then
        error("another tube has the queue number of tube '" .. name .. "'", 0)
    end
    local options, n = tube.options, tube.n
    options[O.temporary], options[O.paused] = temporary, paused
    options[O.capacity], options[O.semaphore] = given(capacity) or NULL, given(semaphore) or NULL
    pace.import(tube, retry, rate, level, at)
    c.by_name[came], c.by_name[name] = nil, tube
    tube.o, tube.name, tube.queue_num = read_options(options), name, given(queue_num)
    tube.next_id = math.max(tonumber(tube.next_id), tonumber(next_id))
    n.done = done
    for place, call in ipairs(CALLS) do
        n[call] = calls[place]
    end
    write_row(tube)
    mark_changed(c, tube)
    return tube
end
