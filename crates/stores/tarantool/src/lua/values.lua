-- Words and numbers that everything else uses. Moments and lengths of time are microseconds in doubles, which are exact up
-- to 2^53; what lies beyond never comes, and travels and is kept as the largest number that a moment may be.
-- Priorities, ids and lease numbers are passed on as they came: Tarantool keeps large ones exact.

local fiber, clock = require('fiber'), require('clock')
local box, math, string, table, ipairs, pairs, tonumber, type, unpack = box, math, string, table, ipairs, pairs, tonumber, type, unpack

local NULL = box.NULL
local NEVER = 9223372036854775807ULL
local FAR = 2 ^ 53
local FOREVER = 3153600000000000
local ATTEMPTS_MAX = 4294967295
local TASK_ID_MAX = 562949953421311
local BYTES_MAX = 67108864
-- A call whose answer has more bytes of tasks than this stops there: the rest is asked again.
local ANSWER_BYTES_MAX = 16777216
local TUBES_MAX = 10000
-- Most rows that are looked at together.
local STEP = 1000

-- A task in its space: the fields of an answer first, then what only we want to know. Whether it is taken is not
-- written there: that is a row of its own, so that a take does not write the task anew. How important a task is to the semaphore of its
-- tube (OWN) is there where its put said so. DUE is when a delayed task becomes ready; of one that is ready, taken or gated it is since
-- when it could be taken, where that is not since its put.
local ID, STATE, PRI, CREATED, EXPIRES, TTR, ATTEMPTS, REASON, BODY, DELIVERY, PREVIOUS, DUE, SUBQUEUE, OWN, TUBE, BYTES, PARTS,
    FLAG = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18
local READY, TAKEN, DELAYED, BURIED, DONE = 0, 1, 2, 3, 4
local PLAIN, DEAD_LETTER, GATED = 0, 1, 2

-- A delivery: again first what is answered.
local D_LEASE, D_UNTIL, D_START, D_SESSION, D_TUBE, D_ID, D_EXPLICIT = 1, 2, 3, 4, 5, 6, 7

-- Why a task does not run now.
local WHY = { waits = 0, running = 1, not_due = 2, paused = 3, subqueue_busy = 4, buried = 5, used_up = 6, expired = 7, finished = 8,
    semaphore = 9 }
local NO_REASON = { WHY.waits }

-- Replies and refusals by their numbers.
local REPLY = { nothing = 0, created = 1, tubes = 2, put = 3, taken = 4, finished = 5, kicked = 6, tasks = 7, session = 8,
    ticked = 9, semaphore = 10, deliveries = 11, run = 12, all_done = 13, refused = 15 }
local REFUSAL = { tube_not_found = 0, tube_exists = 1, tube_has_taken = 2, tube_full = 4, too_many_tubes = 5, unsupported = 7,
    invalid = 8, too_large = 9, session_unknown = 10, overloaded = 11, semaphore_not_found = 16, too_many_semaphores = 17,
    no_semaphore = 18, queue_num_taken = 19, semaphore_in_use = 21, semaphore_has_tube = 22 }

local NOTHING = { REPLY.nothing }

local function refuse(kind, ...)
    return { REPLY.refused, REFUSAL[kind], ... }
end

-- What was left out in the middle of a list arrives as a value that is true to Lua.
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

-- Bytes arrive as a text, but for Tarantool 3, which has a type of their own for them.
local has_varbinary, varbinary = pcall(require, 'varbinary')

local function text(value)
    if has_varbinary and varbinary.is(value) then
        return tostring(value)
    end
    return value
end

-- A moment as it is counted with.
local function moment(value)
    if value == nil then
        return nil
    end
    local at = tonumber(value)
    return at >= FAR and FAR or at
end

-- A moment as it is kept and answered.
local function stamp(at)
    return at >= FAR and NEVER or at
end

-- A moment moved by a length of time.
local function later(at, span)
    if span >= FOREVER then
        return FAR
    end
    local sum = at + span
    return sum >= FAR and FAR or sum
end

local function micros()
    return tonumber(clock.time64() / 1000)
end

-- What files say to each other before it is there.
local is_alive, body_of, view, view_done, delivery_of, refuse_shown, info, give_back, give_back_all, empty, end_session, connect,
    connections_at, flush_all, regate, gate_new, find_semaphore, flush_semaphores, next_semaphore, tick_semaphores, is_full,
    keep_body, refuse_queue_num, may_go_straight, insert_plain
-- What can be asked, by number.
local verbs = {}
-- What comes from another store.
local imports = {}
-- What was told of events.
local confirm_told, forget_told
