-- The orders of tasks. A task is in exactly the orders of its state, because code that moves it uses `leave` and `enter`.

-- Since when a task that is ready, taken or gated is ready.
local function since_of(task)
    local since = task[DUE]
    return since == nil and task[CREATED] or since
end

-- The id of the first taken task from this id on.
function positions.first_taken(of, id)
    local delivery = S.taken:select({ of, id }, { iterator = 'GE', limit = 1 })[1]
    return delivery and delivery[D_TUBE] == of and delivery[D_ID] or STORED_NEVER
end

-- How many rows of an order, from a key on, follow each other before one for which `key_of` returns nothing; counts up to `most`. For
-- the others it returns their key. Answers also the key of the last. Tarantool skips rows much faster than Lua reads them, so the steps
-- grow until one is too long, and then the rest is halved.
function positions.count_rows(order, key, most, key_of)
    local count, iterator, step, rest, last = 0, 'GE', 1, nil, nil
    while count < most and rest ~= 1 do
        step = rest and math.floor(rest / 2) or math.min(step, most - count)
        local row = order:select(key, { iterator = iterator, offset = step - 1, limit = 1 })[1]
        local found = row and key_of(row)
        if found then
            count, last, key, iterator = count + step, found, found, 'GT'
            rest, step = rest and rest - step, 2 * step
        else
            rest = step
        end
    end
    return count, last
end

-- Removes the optional fields from the copy of a row.
local function cut_optional(row)
    for place = #row, FAILURES, -1 do
        row[place] = nil
    end
end

-- Puts the first ready task of an idle sub-queue into the order of takeable tasks, and none of a busy one.
local function update_subqueue(tube, key, running)
    local of = tube.number
    local row = S.subqueue:get({ of, key })
    local before_pri, before_id = row and given(row[4]), row and given(row[5])
    running = (row and row[3] or 0) + (running or 0)
    local head
    if running == 0 then
        head = S.line:select({ of, key }, { limit = 1 })[1]
    end
    local pri, id = head and head[3], head and head[4]
    if before_id ~= id then
        if before_id then
            S.ready:delete({ of, before_pri, before_id })
            tube.n.takeable = tube.n.takeable - 1
        end
        if id then
            S.ready:insert({ of, pri, id })
            tube.n.takeable = tube.n.takeable + 1
        end
    end
    if running == 0 and not id then
        if row then
            S.subqueue:delete({ of, key })
        end
    else
        S.subqueue:replace({ of, key, running, pri or NULL, id or NULL })
    end
end

-- Removes a task from the takeable ones. An expired one may have left before.
local function leave_ready(tube, pri, id, key)
    if tube.o.subqueues then
        S.line:delete({ tube.number, key, pri, id })
        update_subqueue(tube, key)
    elseif S.ready:delete({ tube.number, pri, id }) then
        tube.n.takeable = tube.n.takeable - 1
    end
end

local function enter_ready(tube, pri, id, key)
    if tube.o.subqueues then
        S.line:insert({ tube.number, key, pri, id })
        update_subqueue(tube, key)
    else
        S.ready:insert({ tube.number, pri, id })
        tube.n.takeable = tube.n.takeable + 1
    end
end

-- Removes a task that is not taken from the orders of its state.
local function leave(tube, task)
    local of, id, n = tube.number, task[ID], tube.n
    if task[STATE] == READY then
        n.ready = n.ready - 1
        leave_ready(tube, task[PRI], id, task[SUBQUEUE])
    elseif task[STATE] == BURIED then
        n.buried = n.buried - 1
        S.buried:delete({ of, task[PRI], id })
    elseif task[FLAG] == GATED then
        n.delayed = n.delayed - 1
        S.gated:delete({ of, id })
    else
        n.delayed = n.delayed - 1
        S.delayed:delete({ of, task[DUE], id })
        return
    end
    if task[EXPIRES] < STORED_NEVER then
        S.expiry:delete({ of, task[EXPIRES], id })
    end
end

-- Adds a task to the orders of its new state.
local function enter(tube, task)
    local of, id, n = tube.number, task[ID], tube.n
    if task[STATE] == READY then
        n.ready = n.ready + 1
        enter_ready(tube, task[PRI], id, task[SUBQUEUE])
    elseif task[STATE] == BURIED then
        n.buried = n.buried + 1
        S.buried:insert({ of, task[PRI], id })
    elseif task[FLAG] == GATED then
        n.delayed = n.delayed + 1
        S.gated:insert({ of, id })
    else
        n.delayed = n.delayed + 1
        S.delayed:insert({ of, task[DUE], id })
        return
    end
    if task[EXPIRES] < STORED_NEVER then
        tube.can_expire = true
        S.expiry:insert({ of, task[EXPIRES], id })
    end
end

-- Ends a delivery and frees its sub-queue. The caller moves the task.
local function undeliver(tube, delivery, key)
    local id = delivery[D_ID]
    S.taken:delete({ tube.number, id })
    tube.n.taken = tube.n.taken - 1
    local session = delivery[D_SESSION]
    if session ~= nil then
        S.held:delete({ session, tube.number, id })
    end
    if tube.o.subqueues then
        update_subqueue(tube, key, -1)
    end
end

-- Moves a task that is not taken to another state.
local function move(tube, task, changes)
    leave(tube, task)
    task = S.task:update({ tube.number, task[ID] }, changes)
    enter(tube, task)
    return task
end

local function forget_body(tube, task)
    for part = 1, task[PARTS] do
        S.body:delete({ tube.number, task[ID], part })
    end
end

-- Removes a task from the tube. The body stays if the task is kept as done.
local function remove(c, tube, task, delivery, is_kept)
    S.task:delete({ tube.number, task[ID] })
    if delivery then
        undeliver(tube, delivery, task[SUBQUEUE])
    else
        leave(tube, task)
    end
    if task[PARTS] > 0 and not is_kept then
        forget_body(tube, task)
    end
    if task[KEY] ~= nil then
        keys.release(c, tube, task, delivery)
    end
    tube.n.done = tube.n.done + 1
end

-- Removes a task whose time to live is over.
local function expire(c, tube, task)
    remove(c, tube, task)
    tube.n.delete, tube.n.ttl = tube.n.delete + 1, tube.n.ttl + 1
end
