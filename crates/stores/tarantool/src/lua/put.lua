-- Puts tasks.

-- A body up to this size is stored in the row of its task. A larger one is stored apart, in parts that are smaller than Tarantool's default
-- limit of a tuple, so that it is not copied when the task changes.
local INLINE_BYTES_MAX = 8192
local PART_BYTES = 524288

-- Puts must leave memory for takes and acks, which free it: this part of the memory, and at least so many bytes.
local RESERVE, RESERVE_BYTES = 16, 4194304

-- Whether there is too little memory for more tasks.
function is_full()
    local slab = box.slab.info()
    local free = slab.quota_size - slab.quota_used + slab.arena_size - slab.arena_used
    return free < math.max(slab.quota_size / RESERVE, RESERVE_BYTES)
end

local function write_parts(tube, id, payload, meta)
    local part = 0
    for first = 1, #payload, PART_BYTES do
        part = part + 1
        local bytes = string.sub(payload, first, first + PART_BYTES - 1)
        S.body:insert({ tube.number, id, part, bytes, part == 1 and meta or NULL })
    end
    return part
end

-- Stores the body of a task in its row, or apart.
function keep_body(tube, row, payload, meta)
    local bytes = #payload + (meta and #meta or 0)
    row[BYTES] = bytes
    if bytes > INLINE_BYTES_MAX then
        row[BODY], row[PARTS] = NULL, write_parts(tube, row[ID], payload, meta)
    else
        row[BODY], row[PARTS] = meta and { payload, meta } or payload, 0
    end
end

-- A put without options.
local NO_OPTIONS = {}

-- The payload and the meta of a body.
local function split_body(body)
    if type(body) == 'table' then
        return text(body[1]), text(body[2])
    end
    return text(body), nil
end

-- Sets the times and the state of a new task.
local function set_times(c, o, new, row)
    local ttr, expires, due =
        task_times(c.now, number(new[3]) or o.ttl, number(new[4]) or o.ttr, number(new[5]) or o.delay, moment(new[6]))
    row[PRI], row[TTR], row[EXPIRES] = given(new[2]) or o.pri, ttr, stamp(expires)
    row[STATE], row[DUE] = due and DELAYED or READY, due and stamp(due) or NULL
end

-- Whether one of these has a priority for the semaphore.
local function has_own(tasks)
    for place = 1, #tasks do
        if tasks[place][8] ~= nil then
            return true
        end
    end
    return false
end

local function refuse_put(c, tube, tasks)
    local left, size = room(tube), #tasks
    if not tube.o.semaphore and has_own(tasks) then
        return refuse('no_semaphore', tube.name)
    elseif left and size > left then
        return refuse('tube_full', tube.name, tube.o.capacity)
    elseif tube.next_id + size > TASK_ID_MAX then
        return refuse('invalid', "tube '" .. tube.name .. "' has used up its task ids")
    end
    if c.full == nil then
        c.full = is_full()
    end
    if c.full and size > 0 then
        return refuse('overloaded', "Tarantool's memory is full (memtx_memory)")
    end
end

-- Adds one task; `row` has the common fields.
local function add_task(c, tube, new, row)
    local o = tube.o
    keep_body(tube, row, split_body(new[1]))
    if o.times then
        set_times(c, o, new, row)
    end
    if o.subqueues then
        row[SUBQUEUE] = given(new[7]) or 'nil'
    end
    if o.semaphore then
        row[OWN] = given(new[8]) or NULL
    end
    S.task:insert(row)
    enter(tube, row)
end

-- Adds tasks without options, which are ready at once, as nearly all are, in as few steps as possible. Stops at the first task with options
-- or a large body; answers how many were added.
local function add_plain(tube, tasks, row, order, first)
    local task, ready = S.task, S.ready
    order[2] = row[PRI]
    for place = 1, #tasks do
        local new = tasks[place]
        local body = new[1]
        if #new > 1 or type(body) ~= 'string' or #body > INLINE_BYTES_MAX then
            return place - 1
        end
        local id = first + place - 1
        row[ID], row[BODY], row[BYTES], order[3] = id, body, #body, id
        task:insert(row)
        ready:insert(order)
    end
    return #tasks
end

-- Whether raw rows can be inserted, which is checked once in a call.
local function inserts_raw(c)
    if c.inserts_raw == nil then
        c.inserts_raw = can_insert_raw(S.task, S.ready)
    end
    return c.inserts_raw
end

-- Puts all tasks or none.
verbs[4] = function(c, command)
    local tube, tasks = open_tube(c, command[2]), command[3]
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    local size = #tasks
    local refusal = refuse_put(c, tube, tasks)
    if refusal then
        return refusal
    end
    local first, o = tube.next_id, tube.o
    local row = { 0, READY, 0, c.now, STORED_NEVER, FOREVER, 0, NO_REASON, NULL, NULL, NULL, NULL, NULL, NULL, tube.number, 0, 0,
        PLAIN }
    if o.times then
        set_times(c, o, NO_OPTIONS, row)
    end
    local plain, placed = 0, nil
    if row[STATE] == READY and row[EXPIRES] == STORED_NEVER and not o.subqueues then
        if inserts_raw(c) and type(row[PRI]) == 'number' and type(first) == 'number' then
            plain = insert_plain(tube, tasks, row, first, INLINE_BYTES_MAX)
        else
            plain = add_plain(tube, tasks, row, { tube.number, 0, 0 }, first)
        end
        tube.n.ready, tube.n.takeable = tube.n.ready + plain, tube.n.takeable + plain
    end
    if plain < size then
        placed = {}
        for place = 1, size do
            row[ID] = first + place - 1
            if place > plain then
                add_task(c, tube, tasks[place], row)
            end
            placed[place] = { row[ID], place > plain and row[STATE] or READY }
        end
    end
    tube.next_id, tube.renewed = first + size, size > 0 or tube.renewed
    tube.n.put = tube.n.put + size
    mark_changed(c, tube)
    if tube.o.semaphore then
        return { REPLY.put, gate_new(c, tube, first, size) }
    end
    if placed then
        return { REPLY.put, placed }
    end
    return { REPLY.run, first, size }
end
