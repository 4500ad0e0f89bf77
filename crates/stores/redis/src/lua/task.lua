-- A task's record: all that answers show of it, with its body where that is small; and its delivery while it is taken.
-- Numbers in Lua are doubles, so moments are microseconds up to 2^53, which is never; priorities, lease numbers and ids are strings
-- of eight bytes that sort as they should. Lua reads every byte of a text whenever it gets it: short ones are quick.

local NEVER = 9007199254740992
local FOREVER = 3153600000000000
local ATTEMPTS_MAX = 4294967295
local TASK_ID_MAX = 562949953421311
local BYTES_MAX = 67108864
-- Bodies of more bytes than this are apart, so that they are not written again whenever their task moves.
local INLINE_MAX = 512

-- A gated task would be ready if its semaphore let it.
local READY, TAKEN, DELAYED, BURIED, DEAD_LETTER, GATED = 0, 1, 2, 3, 4, 5
-- What semaphores do (semaphore.lua, outbox.lua, settle.lua), and what is between them and tubes (gates.lua).
local sem, outbox, settle, gates = {}, {}, {}, {}
-- The straight way of plain tubes (plain.lua), and tubes of an earlier version (upgrade.lua).
local plain, earlier = {}, {}
-- What is about all tubes (names.lua, registry.lua).
local names, listing = {}, {}
-- What is asked of a tube by files whose other names nobody needs.
local verbs = {}
-- How a task stands in a semaphore.
local WAITS, STANDS_BACK, HOLDS, ASKED = 0, 1, 2, 3

-- Whether the taker named the lease time itself, and whether it has a session.
local EXPLICIT, HAS_SESSION = 1, 2
-- While a library is loaded it has no functions for strings.
local NO_LEASE, NO_PRI = '\0\0\0\0\0\0\0\0', '\0\0\0\0\0\0\0\0'
local NO_SESSION = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'

-- State (of a taken task the one before), due (of a delayed one; of one that waits or is taken since when it could be taken, where
-- that is not since its put), attempts, priority, created, expires, ttr, previous start, the
-- length of the tail, bytes of the body. The tail is a star and how important it is to its semaphore, where its put said
-- so; then a plus and the name of the sub-queue, which may be empty, where there is one. Behind it the body, unless that is
-- apart.
local RECORD = '<Bddc8ddddI4I4'
local RECORD_BYTES = 65
local PRI_AT, EXPIRES_AT, LENGTHS_AT = 18, 34, 58
local STAR = 42
local OWN_BYTES = 9
-- What is small is a list to Redis, which it walks through, as long as nothing in it has more than 64 bytes. Where there may be
-- some hundred at a time this is too slow: so there is something behind each delivery, and a name that nobody has among the moments.
local FILLING = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
local TALL = 'this order is kept as a large one, however few moments there are in it'
-- Flags, whether the body is apart, the end, session, start, lease.
local DELIVERY = '<BBdc16dc8'

-- The text is kept until the task changes: an answer shows what is then written.
local function encode(task)
    if not task.text then
        local tail = (task.own and '*' .. task.own or '') .. task.subqueue
        local state, due = task.state, task.state == DELAYED and task.moment or task.since or 0
        task.text = struct.pack(RECORD, state == TAKEN and READY or state, due, task.attempts, task.pri, task.created,
            task.expires, task.ttr, task.previous, #tail, task.bytes) .. tail .. (task.body or '')
    end
    return task.text
end

local function encode_delivery(task)
    return struct.pack(DELIVERY, task.flags, task.body and 0 or 1, task.moment, task.session, task.start, task.lease) .. FILLING
end

-- A task that nobody holds any more.
local function undeliver(task)
    task.flags, task.moment, task.lease, task.start, task.session = 0, 0, NO_LEASE, 0, NO_SESSION
end

local function decode(record, delivery)
    local task, tail = {}, 0
    undeliver(task)
    task.state, task.moment, task.attempts, task.pri, task.created, task.expires, task.ttr, task.previous, tail, task.bytes =
        struct.unpack(RECORD, record)
    if task.state ~= DELAYED then
        task.since, task.moment = task.moment > 0 and task.moment or nil, 0
    end
    local place, last = RECORD_BYTES + 1, RECORD_BYTES + tail
    if tail > 0 and string.byte(record, place) == STAR then
        task.own = string.sub(record, place + 1, place + OWN_BYTES - 1)
        place = place + OWN_BYTES
    end
    task.subqueue = string.sub(record, place, last)
    if task.bytes <= INLINE_MAX then
        task.body = string.sub(record, last + 1)
    end
    if delivery then
        local _
        task.state = TAKEN
        task.flags, _, task.moment, task.session, task.start, task.lease = struct.unpack(DELIVERY, delivery)
    end
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
