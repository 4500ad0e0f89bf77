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

-- Whether one of these has a priority for the semaphore, and whether one has a key or its own number of attempts.
local function find_options(tasks)
    local has_own, is_extended = false, false
    for place = 1, #tasks do
        local new = tasks[place]
        if new[8] ~= nil then
            has_own = true
        end
        if new[9] ~= nil or new[10] ~= nil then
            is_extended = true
        end
    end
    return has_own, is_extended
end

local function refuse_put(c, tube, tasks)
    local has_own, is_extended = find_options(tasks)
    local left, size = room(tube), #tasks
    if is_extended and S.key and (left and size > left or tube.next_id + size > TASK_ID_MAX) then
        size = keys.count_added(c, tube, tasks)
    end
    local refusal
    if not tube.o.semaphore and has_own then
        refusal = refuse('no_semaphore', tube.name)
    elseif left and size > left then
        refusal = refuse('tube_full', tube.name, tube.o.capacity)
    elseif tube.next_id + size > TASK_ID_MAX then
        refusal = refuse('invalid', "tube '" .. tube.name .. "' has used up its task ids")
    end
    if c.full == nil then
        c.full = is_full()
    end
    if not refusal and c.full and size > 0 then
        refusal = refuse('overloaded', "Tarantool's memory is full (memtx_memory)")
    end
    return refusal or is_extended and keys.begin() or nil, is_extended
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
        c.inserts_raw = can_insert_raw(S.task, S.ready) and (not S.key or can_insert_raw(S.key))
    end
    return c.inserts_raw
end

-- Whether the tasks of this row, which has the common fields, are ready at once and in no other order.
local function is_plain(o, row)
    return row[STATE] == READY and row[EXPIRES] == STORED_NEVER and not o.subqueues
end

-- The row of a task with the common fields, and the times of a put without options.
local function new_row(c, tube)
    local row = { 0, READY, 0, c.now, STORED_NEVER, FOREVER, 0, NO_REASON, NULL, NULL, NULL, NULL, NULL, NULL, tube.number, 0, 0, PLAIN }
    if tube.o.times then
        set_times(c, tube.o, NO_OPTIONS, row)
    end
    return row
end

-- Adds tasks with a new key and no other options, which are ready at once, in as few steps as possible; `row` has the common fields.
-- Stops at the first other one; answers how many were added.
local function add_keyed(tube, tasks, from, to, row)
    local size = keys.insert_plain(tube, tasks, from, to, row, INLINE_BYTES_MAX)
    tube.next_id, tube.n.ready, tube.n.takeable = tube.next_id + size, tube.n.ready + size, tube.n.takeable + size
    return size
end

-- Adds a task that may have a key, which is free, and its own number of attempts. `row` has the common fields, and so has `plain` if
-- rows can be inserted raw. Answers its state.
local function add_extended(c, tube, tasks, place, row, plain)
    if plain and add_keyed(tube, tasks, place, place, plain) == 1 then
        return READY
    end
    local new = tasks[place]
    local id, request, attempts_max = tube.next_id, given(new[9]), given(new[10])
    tube.next_id, row[ID] = id + 1, id
    if request or attempts_max then
        row[FAILURES], row[KEY], row[UNIQUE_FOR] = NULL, request and request[1] or NULL, request and request[2] or NULL
        row[OWN_ATTEMPTS] = attempts_max
    end
    add_task(c, tube, new, row)
    cut_optional(row)
    if request then
        keys.hold(tube, id, request[1])
    end
    return row[STATE]
end

-- Gives a ready or delayed task the content of a put. Answers its new state.
local function replace(c, tube, task, new)
    local o, row = tube.o, task:totable()
    leave(tube, task)
    forget_body(tube, task)
    keep_body(tube, row, split_body(new[1]))
    row[STATE], row[FLAG] = READY, PLAIN
    if o.times then
        set_times(c, o, new, row)
    end
    if row[STATE] == READY then
        row[DUE] = c.now
    end
    row[OWN], row[UNIQUE_FOR] = o.semaphore and given(new[8]) or NULL, new[9][2]
    S.task:replace(row)
    enter(tube, row)
    return row[STATE]
end

-- Puts one task. Answers its id, its state, and true if it existed.
local function put_extended(c, tube, tasks, place, row, plain, expired)
    local new = tasks[place]
    local request = given(new[9])
    local id, task, delivery
    if request then
        id, task, delivery = keys.find(c, tube, request[1], expired)
    end
    if not id then
        return { tube.next_id, add_extended(c, tube, tasks, place, row, plain) }
    end
    local state = task and (delivery and TAKEN or task[STATE]) or DONE
    if request[3] and (state == READY or state == DELAYED) then
        state = replace(c, tube, task, new)
    else
        c.follows = true
    end
    return { id, state, true }
end

-- The states of tasks after their semaphore decided.
local function gate_placed(c, tube, placed, moved)
    for _, one in ipairs(placed) do
        moved[#moved + 1] = one[1]
    end
    regate(c, tube, moved)
    for _, one in ipairs(placed) do
        local task = S.task:get({ tube.number, one[1] })
        one[2] = task and (delivery_of(tube, one[1]) and TAKEN or task[STATE]) or one[2]
    end
end

-- Puts tasks of which some have a key or their own number of attempts, one after the other.
local function put_each(c, tube, tasks)
    local row, placed, expired, first, size = new_row(c, tube), {}, {}, tube.next_id, #tasks
    local is_raw = is_plain(tube.o, row) and inserts_raw(c) and type(row[PRI]) == 'number' and type(first) == 'number'
    local plain = is_raw and new_row(c, tube) or nil
    local keyed = plain and not tube.o.semaphore and add_keyed(tube, tasks, 1, size, plain) or 0
    local is_run = keyed == size
    for place = 1, is_run and 0 or size do
        placed[place] = place <= keyed and { first + place - 1, READY } or put_extended(c, tube, tasks, place, row, plain, expired)
    end
    local added = tube.next_id - first
    tube.renewed = added > 0 or tube.renewed
    tube.n.put = tube.n.put + added
    mark_changed(c, tube)
    if tube.o.semaphore then
        gate_placed(c, tube, placed, expired)
    elseif is_run then
        return { REPLY.run, first, size }
    end
    return { REPLY.put, placed }
end

-- Puts all tasks or none.
verbs[4] = function(c, command)
    local tube, tasks = open_tube(c, command[2]), command[3]
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    local size = #tasks
    local refusal, is_extended = refuse_put(c, tube, tasks)
    if refusal then
        return refusal
    elseif is_extended then
        return put_each(c, tube, tasks)
    end
    local first, o, row = tube.next_id, tube.o, new_row(c, tube)
    local plain, placed = 0, nil
    if is_plain(o, row) then
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
