-- Lists tasks page by page. Tasks that are expired and not removed yet are not listed.
--
-- A list writes nothing. A call with a list has no other command and is not a transaction, so a long list yields after each STEP rows. A list
-- by id has every task that exists and has one of the states during the whole list, and no task twice: either it reads all tasks in the order
-- of their ids, with yields, or it reads the orders of the states, without yields and at most about ROWS_MAX rows.

local bit = require('bit')

local ROWS_MAX = 5000
local DONE_ONLY = bit.lshift(1, DONE)
-- How many orders by id are read together, and how many rows of each.
local STREAMS_MAX, STREAM_ROWS = 50, 100

-- Lets other fibers run; a transaction would be aborted.
local function pause()
    if not box.is_in_txn() then
        fiber.sleep(0)
    end
end

local function has(states, state)
    return bit.band(states, bit.lshift(1, state)) ~= 0
end

-- Whether the next tick removes a task that is not taken.
local function is_expired(c, task)
    return task[EXPIRES] <= c.now and (task[STATE] ~= DELAYED or task[FLAG] == GATED)
end

-- Adds those of some tasks, which follow each other by id, to the page. Answers the last id, or nil behind the last task of the tube.
local function add_step(c, tube, states, tasks, page, limit)
    local of, taken, id = tube.number, nil, nil
    for place = 1, #tasks do
        local task = tasks[place]
        if task[TUBE] ~= of then
            return nil
        end
        id = task[ID]
        if not taken or taken < id then
            taken = positions.first_taken(of, id)
        end
        local is_taken = taken == id
        if has(states, is_taken and TAKEN or task[STATE]) and (is_taken or not is_expired(c, task)) then
            page[#page + 1] = { id, task[PRI] }
            if #page == limit then
                return nil
            end
        end
    end
    return id
end

-- A page by id from all tasks of the tube, with yields.
local function among_all(c, tube, states, first, limit)
    local page, step = {}, limit
    while true do
        local tasks = S.task:select({ tube.number, first }, { iterator = 'GE', limit = step })
        local last = add_step(c, tube, states, tasks, page, limit)
        if not last or #tasks < step then
            return page
        end
        first, step = last + 1, STEP
        pause()
    end
end

-- Reads the next rows of a stream: ids in an order by tube and id, or by tube, priority and id.
local function fill(stream, first)
    local order, tube_field, id_field, pri = stream.order, stream.tube_field, stream.id_field, stream.pri
    local key, ids = pri == nil and { stream.of, first } or { stream.of, pri, first }, {}
    for place, row in ipairs(order:select(key, { iterator = 'GE', limit = STREAM_ROWS })) do
        if row[tube_field] ~= stream.of or pri ~= nil and row[2] ~= pri then
            break
        end
        ids[place] = tonumber(row[id_field])
    end
    stream.ids, stream.place = ids, 1
end

-- Goes on to the next id of a stream.
local function advance(stream)
    local ids, place = stream.ids, stream.place
    if place == STREAM_ROWS and stream.order then
        fill(stream, ids[place] + 1)
    else
        stream.place = place + 1
    end
end

local function add_stream(streams, stream, of, first)
    stream.of = of
    fill(stream, first)
    streams[#streams + 1] = stream
end

-- Adds a stream for each priority of an order.
local function add_priorities(streams, order, of, first)
    local head = order:select({ of }, { limit = 1 })[1]
    while head and head[1] == of and #streams <= STREAMS_MAX do
        add_stream(streams, { order = order, tube_field = 1, id_field = 3, pri = head[2] }, of, first)
        -- A key without an id goes on to the next priority.
        head = order:select({ of, head[2] }, { iterator = 'GT', limit = 1 })[1]
    end
end

-- Adds a stream of all ids of another order.
local function add_sorted(streams, order, id_field, of, first)
    local ids = {}
    for _, row in ipairs(order:select({ of })) do
        local id = tonumber(row[id_field])
        if id >= first then
            ids[#ids + 1] = id
        end
    end
    table.sort(ids)
    streams[#streams + 1] = { ids = ids, place = 1 }
end

-- The streams of the states: each has ids in ascending order.
local function streams_of(tube, states, first)
    local streams, of = {}, tube.number
    if has(states, TAKEN) then
        add_stream(streams, { order = S.taken, tube_field = D_TUBE, id_field = D_ID, is_taken = true }, of, first)
    end
    if has(states, BURIED) then
        add_priorities(streams, S.buried, of, first)
    end
    if has(states, DELAYED) then
        add_stream(streams, { order = S.gated, tube_field = 1, id_field = 2 }, of, first)
        add_sorted(streams, S.delayed, 3, of, first)
    end
    if has(states, READY) and tube.o.subqueues then
        add_sorted(streams, S.line, 4, of, first)
    elseif has(states, READY) then
        add_priorities(streams, S.ready, of, first)
    end
    return streams
end

-- The stream with the smallest id.
local function smallest(streams)
    local best, best_id
    for place = 1, #streams do
        local stream = streams[place]
        local id = stream.ids[stream.place]
        if id and (not best or id < best_id) then
            best, best_id = stream, id
        end
    end
    return best, best_id
end

-- A page by id from the orders of the states, without yields; nil if it must read too many rows.
local function among_orders(c, tube, states, first, limit)
    local streams, page, key = streams_of(tube, states, first), {}, { tube.number, 0 }
    if #streams > STREAMS_MAX then
        return nil
    end
    for _ = 1, ROWS_MAX do
        local stream, id = smallest(streams)
        if not stream or #page == limit then
            return page
        end
        key[2] = id
        local task = S.task:get(key)
        if stream.is_taken or not is_expired(c, task) then
            page[#page + 1] = { id, task[PRI] }
        end
        advance(stream)
    end
    return nil
end

-- A page by id. All tasks are read if nearly all have one of the states, or if an order that is not by id has too many rows.
local function by_id(c, tube, states, after, limit)
    if after ~= nil and after >= tube.next_id then
        return {}
    end
    local n, first, asked = tube.n, after == nil and 0 or tonumber(after) + 1, 0
    for state, count in pairs({ [READY] = n.ready, [TAKEN] = n.taken, [DELAYED] = n.delayed, [BURIED] = n.buried }) do
        asked = asked + (has(states, state) and count or 0)
    end
    local sorted = (has(states, DELAYED) and n.delayed or 0) + (has(states, READY) and tube.o.subqueues and n.ready or 0)
    local page
    if total(tube) - asked > STEP and sorted <= ROWS_MAX then
        page = among_orders(c, tube, states, first, limit)
    end
    return page or among_all(c, tube, states, first, limit)
end

-- A page by id of unfinished tasks with the done ones added, of all or those with a key. Done ones are read last: a task may become one during a yield, but none leaves them for another
-- state.
local function with_done(c, tube, page, after, limit, key)
    local first, known = after == nil and 0 or tonumber(after) + 1, {}
    for _, task in ipairs(page) do
        known[tonumber(task[1])] = true
    end
    for _, task in ipairs(done_tasks.page(c, tube, first, limit, pause, key)) do
        if not known[tonumber(task[1])] then
            page[#page + 1] = task
        end
    end
    table.sort(page, function(a, b) return a[1] < b[1] end)
    for place = #page, limit + 1, -1 do
        page[place] = nil
    end
    return page
end

-- A page by id of the unfinished task with a key.
local function by_key(c, tube, states, after, key)
    local first = after == nil and 0 or tonumber(after) + 1
    return keys.listed(c, tube, key, first, function(_, task, delivery)
        return has(states, delivery and TAKEN or task[STATE]) and (delivery ~= nil or not is_expired(c, task))
    end)
end

-- Counts a row that was read, and yields after each STEP rows.
local function count_row(c)
    c.listed_rows = (c.listed_rows or 0) + 1
    if c.listed_rows % STEP == 0 then
        pause()
    end
end

-- The first task of a sub-queue that is not expired, behind its expired head.
local function next_head(c, tube, head)
    local of, key = tube.number, head[SUBQUEUE]
    for _, row in S.line:pairs({ of, key, head[PRI], head[ID] }, { iterator = 'GT' }) do
        if row[1] ~= of or row[2] ~= key then
            return nil
        elseif not is_expired(c, S.task:get({ of, row[4] })) then
            return { row[4], row[3] }
        end
        count_row(c)
    end
end

-- Adds the tasks after this priority and id that expired heads of sub-queues hide.
local function add_hidden(c, tube, pri, id, page)
    local of = tube.number
    for _, row in S.expiry:pairs({ of }) do
        if row[2] > c.now then
            break
        end
        local task = S.task:get({ of, row[3] })
        local subqueue = task[STATE] == READY and S.subqueue:get({ of, task[SUBQUEUE] })
        local next_one = subqueue and subqueue[5] == row[3] and next_head(c, tube, task)
        if next_one and (pri == nil or next_one[2] > pri or next_one[2] == pri and next_one[1] > id) then
            page[#page + 1] = next_one
        end
        count_row(c)
    end
end

-- The first tasks of a list in the order of takes, each once: a head may be found twice if its sub-queue changes during a yield.
local function in_order(tasks, limit)
    table.sort(tasks, function(a, b) return a[2] < b[2] or a[2] == b[2] and a[1] < b[1] end)
    local page, known = {}, {}
    for _, task in ipairs(tasks) do
        local id = tonumber(task[1])
        if #page < limit and not known[id] then
            known[id] = true
            page[#page + 1] = task
        end
    end
    return page
end

-- A page of takeable tasks in the order of takes, with yields. An expired task stays among them until a take or a tick finds it.
local function in_queue(c, tube, pri, id, limit)
    local of, page, key = tube.number, {}, { tube.number, 0 }
    for _, place in S.ready:pairs({ of, pri, id }, { iterator = pri ~= nil and 'GT' or 'GE' }) do
        if place[1] ~= of or #page == limit then
            break
        end
        key[2] = place[3]
        if not is_expired(c, S.task:get(key)) then
            page[#page + 1] = { place[3], place[2] }
        end
        count_row(c)
    end
    if not tube.o.subqueues then
        return page
    end
    local size = #page
    add_hidden(c, tube, pri, id, page)
    return #page == size and page or in_order(page, limit)
end

verbs[LIST] = function(c, command)
    local tube, limit, states = open_tube(c, command[2]), tonumber(command[3]), number(command[4])
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    local pri, id, key, page = given(command[5]), given(command[6]), given(command[7]), nil
    if not states then
        page = in_queue(c, tube, pri, id, limit)
    elseif key then
        page = by_key(c, tube, states, id, key)
    else
        page = states == DONE_ONLY and {} or by_id(c, tube, states, id, limit)
    end
    if states and has(states, DONE) then
        page = with_done(c, tube, page, id, limit, key)
    end
    -- If the tube was dropped during a yield, another one may have its number.
    local row = S.tube:get(tube.number)
    if not row or row[2] ~= tube.name then
        return refuse('tube_not_found', command[2])
    end
    return { REPLY.listed, page }
end
