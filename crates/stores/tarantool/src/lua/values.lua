-- Constants and conversions that all other files use. A moment that never comes is sent and stored as the largest number that a moment
-- may be. Priorities, ids and lease numbers are passed on as they are: Tarantool keeps large ones exact.

local NULL = box.NULL
local STORED_NEVER = 9223372036854775807ULL
-- A call whose answer has more bytes of tasks than this stops there: the caller sends the rest again.
local REPLY_BYTES_MAX = 16777216
-- Most rows that are read together.
local STEP = 1000

-- A task in its space: the fields of an answer first, then internal ones. A delivery is a row of its own, so that a take does not write the
-- task again. OWN is the priority of the task in the semaphore of its tube, if its put gives one. DUE is when a delayed task becomes ready;
-- of a task that is ready, taken or gated it is since when it is ready, if that is not since its put. The fields behind FLAG are optional: only
-- a task that failed has FAILURES, only one with a unique key has KEY and for how long it is UNIQUE_FOR after its end, and OWN_ATTEMPTS is
-- the number of attempts that its put gives.
local ID, STATE, PRI, CREATED, EXPIRES, TTR, ATTEMPTS, REASON, BODY, DELIVERY, PREVIOUS, DUE, SUBQUEUE, OWN, TUBE, BYTES, PARTS,
    FLAG, FAILURES, KEY, UNIQUE_FOR, OWN_ATTEMPTS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22
local DONE = 4
local PLAIN, DEAD_LETTER, GATED = 0, 1, 2

-- A delivery: the fields of an answer first. Only one whose worker has a name has D_WORKER.
local D_LEASE, D_UNTIL, D_START, D_SESSION, D_TUBE, D_ID, D_EXPLICIT, D_WORKER = 1, 2, 3, 4, 5, 6, 7, 8

-- The errors of deliveries that ended by themselves.
local ERRORS = { lease_expired = '{{LEASE_EXPIRED}}', session_ended = '{{SESSION_ENDED}}', server_lost = '{{SERVER_LOST}}' }

local NO_REASON = { REASONS.waits }

-- Numbers of replies and refusals.
local REPLY = { nothing = 0, created = 1, tubes = 2, put = 3, taken = 4, finished = 5, kicked = 6, tasks = 7, session = 8,
    ticked = 9, semaphore = 10, deliveries = 11, run = 12, all_done = 13, listed = 14, refused = 15, schedule = 16, positions = 17,
    found = 18 }
local REFUSAL = { tube_not_found = 0, tube_exists = 1, tube_has_taken = 2, tube_full = 4, too_many_tubes = 5, unsupported = 7,
    invalid = 8, too_large = 9, session_unknown = 10, overloaded = 11, semaphore_not_found = 16, too_many_semaphores = 17,
    no_semaphore = 18, queue_num_taken = 19, semaphore_in_use = 21, semaphore_has_tube = 22, schedule_not_found = 24, schedule_exists = 25,
    too_many_schedules = 26 }

local NOTHING = { REPLY.nothing }
-- The reply to a command with values that its server refuses, if nothing else is wrong with it: the server knows why.
local INVALID = { REPLY.refused, REFUSAL.invalid, '' }

local function refuse(kind, ...)
    return { REPLY.refused, REFUSAL[kind], ... }
end

-- A value that is missing in the middle of a list arrives as box.NULL, which is true in Lua.
local function given(value)
    if value == nil then
        return nil
    end
    return value
end

local function number(value)
    if value == nil then
        return nil
    end
    return tonumber(value)
end

-- Bytes arrive as a string, but Tarantool 3 has a type for them.
local has_varbinary, varbinary = pcall(require, 'varbinary')

local function text(value)
    if has_varbinary and varbinary.is(value) then
        return tostring(value)
    end
    return value
end

-- A stored moment as a number.
local function moment(value)
    if value == nil then
        return nil
    end
    local at = tonumber(value)
    return at >= NEVER and NEVER or at
end

-- A moment as it is stored and answered.
local function stamp(at)
    return at >= NEVER and STORED_NEVER or at
end

-- A whole number in so many bytes, the highest first.
local function big_endian(value, size)
    local bytes = {}
    for place = size, 1, -1 do
        bytes[place] = value % 256
        value = math.floor(value / 256)
    end
    return string.char(unpack(bytes, 1, size))
end

local function micros()
    return tonumber(clock.time64() / 1000)
end

-- Functions that files use before they are defined.
local is_alive, body_of, view, view_done, delivery_of, info, give_back, give_back_all, empty, end_session, connect,
    connections_at, flush_all, regate, gate_new, find_semaphore, flush_semaphores, next_semaphore, tick_semaphores, is_full,
    keep_body, refuse_queue_num, can_insert_raw, insert_plain, with_failure
-- Commands by number, and the number of the list, which is the only command of its call.
local verbs, LIST = {}, 19
-- Functions that import from another store, those for done tasks that are kept, for unique keys, for retry policies and rate limits, for
-- schedules, for the stored format, for positions of tasks, and for tasks in answers.
local imports, done_tasks, keys, pace, schedules, formats, positions, shown_tasks = {}, {}, {}, {}, {}, {}, {}, {}
-- Announcements of events.
local confirm_announced, reset_announced
