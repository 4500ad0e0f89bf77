-- Inserts encoded rows through the C API. `space:insert` encodes a table and returns a row that is not used, which costs more than the row
-- itself. Here the bytes are written directly, and nothing is returned. A trigger would run Lua inside of the C call, which is not allowed:
-- if a space has triggers, rows are inserted with `space:insert`.

local ffi, msgpack = require('ffi'), require('msgpack')
-- Another library may have declared them.
pcall(ffi.cdef, 'int box_insert(uint32_t space, const char *tuple, const char *tuple_end, void **result);')
pcall(ffi.cdef, 'void *box_txn_alloc(size_t size);')
pcall(ffi.cdef, 'ssize_t box_tuple_to_buf(box_tuple_t *tuple, char *buf, size_t size);')
local is_available = pcall(function() return ffi.C.box_insert, ffi.C.box_txn_alloc, ffi.C.box_tuple_to_buf end)

-- The most bytes of a row besides its body and the common fields.
local ROOM_BYTES = 64
local floor = math.floor
local u8 = ffi.typeof('uint8_t *')
local chars = ffi.typeof('const char *')

-- Memory for a row. It is valid until the transaction ends, because the log is written from it.
local function new_bytes(size)
    local bytes = ffi.C.box_txn_alloc(size)
    if bytes == nil then
        box.error(box.error.MEMORY_ISSUE, size, 'taskyard', 'a row')
    end
    return ffi.cast(u8, bytes)
end

-- Writes a whole number below 2^53 at this position; answers the next one. Indexes find only the shortest encoding.
local function write_uint(at, value)
    if value < 128 then
        at[0] = value
        return at + 1
    elseif value < 256 then
        at[0], at[1] = 0xcc, value
        return at + 2
    elseif value < 65536 then
        at[0], at[1], at[2] = 0xcd, floor(value / 256), value % 256
        return at + 3
    end
    local low, high = value % 4294967296, floor(value / 4294967296)
    at[0] = high > 0 and 0xcf or 0xce
    if high > 0 then
        at[1], at[2], at[3], at[4] = 0, floor(high / 65536), floor(high / 256) % 256, high % 256
        at = at + 4
    end
    at[1], at[2], at[3], at[4] = floor(low / 16777216), floor(low / 65536) % 256, floor(low / 256) % 256, low % 256
    return at + 5
end

local function write_text(at, text_bytes)
    local size = #text_bytes
    if size < 32 then
        at[0] = 0xa0 + size
        at = at + 1
    elseif size < 256 then
        at[0], at[1] = 0xd9, size
        at = at + 2
    else
        at[0], at[1], at[2] = 0xda, floor(size / 256), size % 256
        at = at + 3
    end
    ffi.copy(at, text_bytes, size)
    return at + size
end

local function write_raw(at, raw)
    ffi.copy(at, raw, #raw)
    return at + #raw
end

-- A row of three numbers: its beginning and its end.
local function three(a, b, c)
    local bytes = new_bytes(ROOM_BYTES)
    bytes[0] = 0x93
    return bytes, write_uint(write_uint(write_uint(bytes + 1, a), b), c)
end

local function insert_bytes(space, first, last)
    if ffi.C.box_insert(space, ffi.cast(chars, first), ffi.cast(chars, last), nil) ~= 0 then
        box.error()
    end
end

-- Whether raw rows can be inserted into these spaces.
function can_insert_raw(...)
    if not is_available then
        return false
    end
    for place = 1, select('#', ...) do
        local space = select(place, ...)
        if #space:on_replace() > 0 or #space:before_replace() > 0 then
            return false
        end
    end
    return true
end

-- The encoded fields of a row from `first` to `last`.
local function fields_of(row, first, last)
    local bytes = {}
    for place = first, last do
        bytes[#bytes + 1] = msgpack.encode(row[place])
    end
    return table.concat(bytes)
end

-- The common fields of plain tasks, in three parts. They are the same in a whole call, as long as the tube is not altered.
local function common_parts(tube, row)
    local o = tube.o
    if not o.common then
        o.common = { fields_of(row, STATE, REASON), fields_of(row, DELIVERY, TUBE), fields_of(row, PARTS, FLAG) }
    end
    return o.common[1], o.common[2], o.common[3]
end

-- Puts tasks that differ only in their ids and bodies. Stops at the first task with options or a body of more than `most` bytes; answers how
-- many were put.
function insert_plain(tube, tasks, row, first, most)
    local before, between, after = common_parts(tube, row)
    local task, ready, of, pri = S.task.id, S.ready.id, tube.number, row[PRI]
    local common = #before + #between + #after + ROOM_BYTES
    for place = 1, #tasks do
        local new = tasks[place]
        local body = new[1]
        if #new > 1 or type(body) ~= 'string' or #body > most then
            return place - 1
        end
        local id, bytes = first + place - 1, new_bytes(common + #body)
        bytes[0], bytes[1], bytes[2] = 0xdc, 0, FLAG
        local at = write_text(write_raw(write_uint(bytes + 3, id), before), body)
        insert_bytes(task, bytes, write_raw(write_uint(write_raw(at, between), #body), after))
        insert_bytes(ready, three(of, pri, id))
    end
    return #tasks
end

-- Whether a task has nothing but a body of at most so many bytes and a key.
local function has_only_key(new, most)
    local body = new[1]
    return new[9] ~= nil and new[10] == nil and type(body) == 'string' and #body <= most and new[2] == nil and new[3] == nil
        and new[4] == nil and new[5] == nil and new[6] == nil and new[7] == nil and new[8] == nil
end

-- Gives a key to a task, unless it is stored; answers whether it was given.
local function insert_key(space, of, key, id)
    local bytes = new_bytes(#key + ROOM_BYTES)
    bytes[0] = 0x93
    local last = write_uint(write_text(write_uint(bytes + 1, of), key), id)
    if ffi.C.box_insert(space, ffi.cast(chars, bytes), ffi.cast(chars, last), nil) == 0 then
        return true
    elseif box.error.last().code ~= box.error.TUPLE_FOUND then
        box.error()
    end
    return false
end

-- Puts the tasks from one position to another that differ from plain ones only in their keys. Stops at the first one with options, a body of
-- more than `most` bytes, or a key that is stored; answers how many were put.
function keys.insert_plain(tube, tasks, from, to, row, most)
    local before, between, after = common_parts(tube, row)
    local task, ready, holders, of, pri = S.task.id, S.ready.id, S.key.id, tube.number, row[PRI]
    local common, first = #before + #between + #after + 2 * ROOM_BYTES, tube.next_id
    for place = from, to do
        local new, id = tasks[place], first + place - from
        if not has_only_key(new, most) or not insert_key(holders, of, new[9][1], id) then
            return place - from
        end
        local body, key = new[1], new[9][1]
        local bytes = new_bytes(common + #body + #key)
        bytes[0], bytes[1], bytes[2] = 0xdc, 0, UNIQUE_FOR
        local at = write_text(write_raw(write_uint(bytes + 3, id), before), body)
        at = write_raw(write_uint(write_raw(at, between), #body), after)
        -- It has no failures.
        at[0] = 0xc0
        insert_bytes(task, bytes, write_uint(write_text(at + 1, key), new[9][2]))
        insert_bytes(ready, three(of, pri, id))
    end
    return to - from + 1
end

-- Inserts a done task: five numbers, how it ended in less than 64 KiB, and its row as an unfinished task of so many bytes.
function done_tasks.insert_raw(of, id, ended, pri, parts, finished, task, size)
    local bytes = new_bytes(ROOM_BYTES + #finished + size)
    bytes[0] = 0x97
    local at = write_uint(write_uint(write_uint(bytes + 1, of), id), ended)
    at = write_text(write_uint(write_uint(at, pri), parts), finished)
    ffi.C.box_tuple_to_buf(task, ffi.cast('char *', at), size)
    insert_bytes(S.done.id, bytes, at + size)
end
