-- A task's record: all that answers show of it but its body. Numbers in Lua are doubles, so moments are microseconds
-- up to 2^53, which is never; priorities, lease numbers and ids are strings of eight bytes that sort as they should.

local NEVER = 9007199254740992
local FOREVER = 3153600000000000
local ATTEMPTS_MAX = 4294967295
local TASK_ID_MAX = 562949953421311
local BYTES_MAX = 67108864

-- A gated task would be ready if its semaphore let it.
local READY, TAKEN, DELAYED, BURIED, DEAD_LETTER, GATED = 0, 1, 2, 3, 4, 5
-- What semaphores do (semaphore.lua, outbox.lua, settle.lua), and what is between them and tubes (gates.lua).
local sem, outbox, settle, gates = {}, {}, {}, {}
-- How a task stands in a semaphore.
local WAITS, STANDS_BACK, HOLDS, ASKED = 0, 1, 2, 3

-- Whether the taker named the lease time itself, and whether it has a session.
local EXPLICIT, HAS_SESSION = 1, 2
-- While a library is loaded it has no functions for strings.
local NO_LEASE, NO_PRI = '\0\0\0\0\0\0\0\0', '\0\0\0\0\0\0\0\0'
local NO_SESSION = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'

-- State, flags, attempts, bytes of the body, priority, created, expires, ttr, previous start, moment (of a delayed task its
-- due, of a taken one its end), lease, start, session; then a star and how important it is to its semaphore, where its put
-- said so; then an at and since when it could be taken, where that is not since its put; then a plus and the name of the
-- sub-queue, which may be empty, where there is one.
local RECORD = '<BBI4I4c8dddddc8dc16'
local RECORD_BYTES = 90
local STAR, AT = 42, 64
local OWN_BYTES, SINCE_BYTES = 9, 9

-- The text is kept until the task changes: an answer shows what is then written.
local function encode(task)
    if not task.text then
        task.text = struct.pack(RECORD, task.state, task.flags, task.attempts, task.bytes, task.pri, task.created, task.expires,
            task.ttr, task.previous, task.moment, task.lease, task.start, task.session) .. (task.own and '*' .. task.own or '')
            .. (task.since and '@' .. struct.pack('<d', task.since) or '') .. task.subqueue
    end
    return task.text
end

local function decode(record)
    local task = {}
    task.state, task.flags, task.attempts, task.bytes, task.pri, task.created, task.expires, task.ttr, task.previous,
        task.moment, task.lease, task.start, task.session = struct.unpack(RECORD, record)
    local place = RECORD_BYTES + 1
    if string.byte(record, place) == STAR then
        task.own = string.sub(record, place + 1, place + OWN_BYTES - 1)
        place = place + OWN_BYTES
    end
    if string.byte(record, place) == AT then
        task.since = struct.unpack('<d', record, place + 1)
        place = place + SINCE_BYTES
    end
    task.subqueue = string.sub(record, place)
    return task
end

local function clock()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end

-- A moment moved by a length of time.
local function later(moment, span)
    if span >= FOREVER then
        return NEVER
    end
    return math.min(moment + span, NEVER)
end

-- When time alone next moves a task.
local function timer_of(task)
    if task.state == TAKEN or task.state == DELAYED then
        return task.moment
    end
    return task.expires
end

-- A task that nobody holds any more.
local function undeliver(task)
    task.flags, task.moment, task.lease, task.start, task.session = 0, 0, NO_LEASE, 0, NO_SESSION
end
