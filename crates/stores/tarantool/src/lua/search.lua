-- Searches the bodies of tasks with consecutive ids for certain bytes, and shows those that have them.
--
-- Usually every stored task is compared. Then their bytes are read where they are: a Lua value for each task would take ten times as long, and single
-- calls for 1,000 tasks took up to 12 ms with them.

local bit, ffi, msgpack = require('bit'), require('ffi'), require('msgpack')

pcall(ffi.cdef, 'typedef struct iterator box_iterator_t;')
pcall(ffi.cdef, [[box_iterator_t *box_index_iterator(uint32_t space, uint32_t index, int type, const char *key, const char *key_end);]])
pcall(ffi.cdef, 'int box_iterator_next(box_iterator_t *iterator, box_tuple_t **result);')
pcall(ffi.cdef, 'void box_iterator_free(box_iterator_t *iterator);')
pcall(ffi.cdef, 'const char *box_tuple_field(box_tuple_t *tuple, uint32_t field);')
pcall(ffi.cdef, 'void *memmem(const void *text, size_t size, const void *run, size_t run_size);')
local is_raw_available, raw_tuple = pcall(function()
    local C = ffi.C
    local _ = C.box_index_iterator, C.box_iterator_next, C.box_iterator_free, C.box_tuple_field, C.memmem
    return ffi.new('box_tuple_t *[1]')
end)
local chars, u8 = ffi.typeof('const char *'), ffi.typeof('const uint8_t *')

local UNFINISHED = bit.lshift(1, DONE) - 1

-- The tasks of the tube with these ids, in their order.
local function tasks_between(of, first, last)
    local rows = S.task:select({ of, first }, { iterator = 'GE', limit = last - first + 1 })
    for place = #rows, 1, -1 do
        local row = rows[place]
        if row[TUBE] == of and row[ID] <= last then
            break
        end
        rows[place] = nil
    end
    return rows
end

-- A search: what it looks for, and what it found so far. Other states and moments are read only if they matter, because fields cost more than
-- the comparison.
local function new_search(c, tube, states, run)
    local every = bit.band(states, UNFINISHED) == UNFINISHED and first_moment(S.expiry, tube, 2) > c.now
    return { tube = tube, states = states, run = run, every = every, stored = shown_tasks.are_stored(c, tube), shown = {}, ranks = {}, compared = 0,
        bytes = 0, last = NULL, taken = nil }
end

-- Whether a task is taken. Ids are asked for in ascending order.
local function is_taken(search, id)
    if not search.taken or search.taken < id then
        search.taken = positions.first_taken(search.tube.number, id)
    end
    return search.taken == id
end

-- Whether a task has one of the states and is not expired.
local function is_compared(c, search, task)
    if search.every then
        return true
    end
    local taken = is_taken(search, task[ID])
    local state = taken and TAKEN or task[STATE]
    if bit.band(search.states, bit.lshift(1, state)) == 0 then
        return false
    end
    return taken or task[EXPIRES] > c.now or task[STATE] == DELAYED and task[FLAG] ~= GATED
end

local function add(search, seen)
    local place = #search.shown + 1
    search.shown[place], search.ranks[place] = seen, search.compared
end

-- Compares a stored task. One whose body is in parts is shown: to join them would cost more.
local function compare(c, search, task)
    if not is_compared(c, search, task) then
        return
    end
    local id, body = task[ID], task[BODY]
    local payload = text(type(body) == 'table' and body[1] or body)
    local is_here = type(payload) == 'string'
    search.compared, search.last = search.compared + 1, id
    search.bytes = search.bytes + (is_here and #payload or task[BYTES])
    if search.bytes > BATCH_BYTES_MAX then
        -- The search is refused: nothing more is compared.
        return
    elseif not is_here or string.find(payload, search.run, 1, true) then
        c.bytes = c.bytes + task[BYTES]
        add(search, shown_tasks.peeked(c, search.tube, task, is_taken(search, id), search.stored))
    end
end

-- Shows a done task without a comparison.
local function show_done(c, search, id)
    local done = done_tasks.get(c, search.tube, id)
    if not done then
        return
    end
    local bytes = done_tasks.bytes(search.tube, id)
    search.compared, search.last, search.bytes = search.compared + 1, id, search.bytes + bytes
    c.bytes = c.bytes + bytes
    add(search, done_tasks.view(c, search.tube, done, true))
end

-- A whole number at these bytes of MessagePack, of so many bytes behind a first one.
local function big_number(bytes, size)
    local value = 0
    for place = 1, size do
        value = value * 256 + bytes[place]
    end
    return value
end

-- The whole number that is a field of a stored row.
local function raw_number(row, field)
    local bytes = ffi.cast(u8, ffi.C.box_tuple_field(row, field - 1))
    local first = bytes[0]
    return first < 0x80 and first or big_number(bytes, bit.lshift(1, first - 0xcc))
end

-- The payload in a stored row: where it is, and its size; nil if it is stored apart.
local function raw_payload(row)
    local bytes = ffi.cast(u8, ffi.C.box_tuple_field(row, BODY - 1))
    if bytes[0] == 0x92 then
        -- With a meta.
        bytes = bytes + 1
    end
    local first = bytes[0]
    if first >= 0xa0 and first <= 0xbf then
        return bytes + 1, first - 0xa0
    end
    local wide = first >= 0xd9 and first <= 0xdb and first - 0xd9 or first >= 0xc4 and first <= 0xc6 and first - 0xc4
    if not wide then
        return nil
    end
    local size = bit.lshift(1, wide)
    return bytes + 1 + size, big_number(bytes, size)
end

-- Compares one stored row. Answers whether it is to be shown.
local function compare_raw(search, row, id)
    local payload, size = raw_payload(row)
    search.compared, search.last = search.compared + 1, id
    search.bytes = search.bytes + (payload and size or raw_number(row, BYTES))
    return not payload or ffi.C.memmem(payload, size, search.run, #search.run) ~= nil
end

-- Compares all tasks with these ids where they are stored, without a yield. Answers the ids of those that are to be shown, and their ranks.
local function compare_stored(search, first, last)
    local of, ids, ranks = search.tube.number, {}, {}
    local key = msgpack.encode({ of, first })
    local bytes = ffi.cast(chars, key)
    local rows = ffi.C.box_index_iterator(S.task.id, 0, box.index.GE, bytes, bytes + #key)
    if rows == nil then
        box.error()
    end
    local is_read = true
    while true do
        is_read = ffi.C.box_iterator_next(rows, raw_tuple) == 0
        local row = raw_tuple[0]
        if not is_read or row == nil or raw_number(row, TUBE) ~= of then
            break
        end
        local id = raw_number(row, ID)
        if id > last or search.bytes > BATCH_BYTES_MAX then
            break
        elseif compare_raw(search, row, id) then
            ids[#ids + 1], ranks[#ranks + 1] = id, search.compared
        end
    end
    ffi.C.box_iterator_free(rows)
    if not is_read then
        box.error()
    end
    return ids, ranks
end

-- Shows the tasks that have the bytes, if all are compared.
local function show_stored(c, search, first, last)
    local tube, key, ids = search.tube, { search.tube.number, 0 }, nil
    ids, search.ranks = compare_stored(search, first, last)
    for place, id in ipairs(ids) do
        key[2] = id
        local task = S.task:get(key)
        c.bytes = c.bytes + task[BYTES]
        search.shown[place] = shown_tasks.peeked(c, tube, task, is_taken(search, id), search.stored)
    end
end

-- Compares the tasks with these ids, and shows done ones.
local function compare_with_done(c, search, tasks, first, last)
    local place = 1
    for id = first, last do
        local task = tasks[place]
        if task and task[ID] == id then
            compare(c, search, task)
            place = place + 1
        else
            show_done(c, search, id)
        end
    end
end

verbs[23] = function(c, command)
    local tube, first = open_tube(c, command[2]), tonumber(command[3])
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    local states, last = tonumber(command[5]), first + tonumber(command[4]) - 1
    local search = new_search(c, tube, states, text(command[6]))
    local with_done = tube.o.keep_done and bit.band(states, bit.lshift(1, DONE)) ~= 0
    if search.every and is_raw_available and not with_done then
        show_stored(c, search, first, last)
    elseif with_done then
        compare_with_done(c, search, tasks_between(tube.number, first, last), first, last)
    else
        for _, task in ipairs(tasks_between(tube.number, first, last)) do
            compare(c, search, task)
        end
    end
    local bytes = search.bytes
    if bytes > BATCH_BYTES_MAX then
        return refuse('too_large', 'the size of the tasks to show, in bytes,', bytes, BATCH_BYTES_MAX, 'ask for fewer at a time')
    end
    return { REPLY.found, search.shown, search.ranks, search.compared, search.last, bytes }
end
