-- Encodes the record of a task, with its body if that is small, and its delivery while it is taken. Priorities, lease numbers and ids are
-- strings of eight bytes that sort like numbers. Lua hashes every string that it receives, so short strings are faster.

-- Larger bodies are stored apart, so that they are not written again whenever their task changes.
local INLINE_MAX = 512

-- States beyond the shared ones. A gated task would be ready with a grant of its tube's semaphore.
local DEAD_LETTER, GATED = 4, 5
-- Functions of semaphores (semaphore.lua, outbox.lua, semaphore_rules.lua), and between them and tubes (gates.lua).
local sem, outbox, rules, gates = {}, {}, {}, {}
-- The fast path of plain tubes (plain.lua), tubes of an earlier version (upgrade.lua), done tasks that are kept (done.lua), unique keys
-- (keys.lua), retry policies and rate limits (pace.lua), and schedules (schedules.lua).
local plain, earlier, done_tasks, keyring, pace, schedules = {}, {}, {}, {}, {}, {}
-- Functions about all tubes (names.lua, registry.lua).
local names, listing = {}, {}
-- Commands of a tube whose files export nothing else.
local verbs = {}
-- The status of a task in a semaphore.
local WAITING, COOLING, HOLDING, ASKED = 0, 1, 2, 3

-- Flags of a delivery: the take gave a lease time; the take has a session.
local EXPLICIT, HAS_SESSION = 1, 2
-- The string library is not available while a library is loaded.
local NO_LEASE, NO_PRI = '\0\0\0\0\0\0\0\0', '\0\0\0\0\0\0\0\0'
local NO_SESSION = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'

-- State (of a taken task the one before), due (of a delayed task; of others since when they are ready, if that is not since their put),
-- attempts, priority, created, expires, ttr, previous start, length of the tail, size of the body. The tail is an extension (keys.lua) with the
-- task's own number of attempts and its key, if it has one of them; a star and the priority in the semaphore, if the put gives one; then a
-- plus and the name of the sub-queue, which may be empty, if there is one. The body follows, unless it is apart. A task with failures
-- (failures.lua) has half an attempt more, and one with an extension a quarter.
local RECORD = '<Bddc8ddddI4I4'
local RECORD_BYTES = 65
local ATTEMPTS_AT, PRI_AT, EXPIRES_AT, LENGTHS_AT = 10, 18, 34, 58
local FAILED, EXTENDED = 0.5, 0.25
local STAR = 42
local OWN_BYTES = 9
-- Redis keeps small hashes and orders as lists, which it scans, as long as no value has more than 64 bytes. With some hundred values that
-- is too slow: so deliveries are padded, and the deadlines have one long member that is no task.
local FILLING = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
local TALL = 'this order is kept as a large one, however few moments there are in it'
-- Flags, whether the body is apart, the end, session, start, lease. The tail follows: whether the task has failures (1) and an extension (2),
-- the length of the worker's name, the name, and padding. The padding is the tail of a delivery with none of it.
local DELIVERY = '<BBdc16dc8'
local DELIVERY_WITH_LENGTH = '<BBdc16dc8xB'
local WORKER_AT = 45

-- The text is cached until the task changes: an answer shows what is written afterwards.
local function encode(task)
    if not task.text then
        local tail = (task.own and '*' .. task.own or '') .. task.subqueue
        if task.extension then
            tail = task.extension .. tail
        end
        local state, due = task.state, task.state == DELAYED and task.moment or task.since or 0
        local attempts = task.attempts + (task.failed and FAILED or 0) + (task.extension and EXTENDED or 0)
        task.text = struct.pack(RECORD, state == TAKEN and READY or state, due, attempts, task.pri, task.created, task.expires,
            task.ttr, task.previous, #tail, task.bytes) .. tail .. (task.body or '')
    end
    return task.text
end

local function encode_delivery(task)
    local tail, worker = FILLING, task.worker or ''
    if task.failed or task.worker or task.extension then
        tail = string.char((task.failed and 1 or 0) + (task.extension and 2 or 0), #worker) .. worker
        tail = tail .. string.sub(FILLING, #tail + 1)
    end
    return struct.pack(DELIVERY, task.flags, task.body and 0 or 1, task.moment, task.session, task.start, task.lease) .. tail
end

-- Removes the delivery of a task.
local function undeliver(task)
    task.flags, task.moment, task.lease, task.start, task.session, task.worker = 0, 0, NO_LEASE, 0, NO_SESSION, nil
end

local function decode(record, delivery)
    local task, tail = {}, 0
    undeliver(task)
    task.state, task.moment, task.attempts, task.pri, task.created, task.expires, task.ttr, task.previous, tail, task.bytes =
        struct.unpack(RECORD, record)
    local fraction = task.attempts % 1
    if fraction > 0 then
        task.attempts, task.failed = task.attempts - fraction, fraction >= FAILED
    end
    if task.state ~= DELAYED then
        task.since, task.moment = task.moment > 0 and task.moment or nil, 0
    end
    local place, last = RECORD_BYTES + 1, RECORD_BYTES + tail
    if fraction % FAILED > 0 then
        place = keyring.read_extension(task, record, place)
    end
    if tail > 0 and string.byte(record, place) == STAR then
        task.own = string.sub(record, place + 1, place + OWN_BYTES - 1)
        place = place + OWN_BYTES
    end
    task.subqueue = string.sub(record, place, last)
    if task.bytes <= INLINE_MAX then
        task.body = string.sub(record, last + 1)
    end
    if delivery then
        local _, size
        task.state = TAKEN
        task.flags, _, task.moment, task.session, task.start, task.lease, size = struct.unpack(DELIVERY_WITH_LENGTH, delivery)
        if size > 0 then
            task.worker = string.sub(delivery, WORKER_AT, WORKER_AT + size - 1)
        end
    end
    return task
end

local function clock()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end

-- The next deadline of a task.
local function timer_of(task)
    if task.state == TAKEN or task.state == DELAYED then
        return task.moment
    end
    return task.expires
end
