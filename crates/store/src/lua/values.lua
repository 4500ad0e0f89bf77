-- Constants and pure functions that the Redis and the Tarantool library share. Nothing here reads or writes the database.
--
-- Moments and lengths of time are microseconds in doubles, which are exact up to 2^53.

-- A moment that never comes.
local NEVER = 9007199254740992
-- The longest length of time: a hundred years. From there on a length has no end.
local FOREVER = {{FOREVER}}
local ATTEMPTS_MAX = 4294967295
local TASK_ID_MAX = {{TASK_ID_MAX}}
local BATCH_BYTES_MAX = {{BATCH_BYTES_MAX}}
local TUBES_MAX, SEMAPHORES_MAX = {{TUBES_MAX}}, {{SEMAPHORES_MAX}}

-- States of a task. A library may add states of its own behind them.
local READY, TAKEN, DELAYED, BURIED = 0, 1, 2, 3
-- How a delivery ends, or changes.
local ACK, RELEASE, BURY, TOUCH = 0, 1, 2, 3
-- Why a task does not run now, as answers say it.
local REASONS = { waits = 0, running = 1, not_due = 2, paused = 3, subqueue_busy = 4, buried = 5, used_up = 6, expired = 7,
    finished = 8, semaphore = 9, rate_limited = 10 }

-- A moment moved by a length of time.
local function later(moment, span)
    if span >= FOREVER then
        return NEVER
    end
    local sum = moment + span
    return sum >= NEVER and NEVER or sum
end

-- Whether tubes of a kind have times (ttl, ttr, delay), and whether they have sub-queues. Kinds are fifo, fifottl, limfifottl, utube
-- and utubettl, from 0.
local function kind_traits(kind)
    return kind == 1 or kind == 2 or kind == 4, kind >= 3
end

-- The time to run and the expiry of a new task, and when it is due if it is delayed. What is not given is nil; `at` replaces the
-- delay. The time to live begins when the delay is over.
local function task_times(now, ttl, ttr, delay, at)
    ttl = ttl or FOREVER
    local due = at or later(now, delay or 0)
    if due > now then
        return ttr or ttl, later(due, ttl), due
    end
    return ttr or ttl, later(now, ttl), nil
end

-- The number of attempts after one more, and whether the task is buried for it.
local function count_attempt(attempts, attempts_max)
    attempts = math.min(attempts + 1, ATTEMPTS_MAX)
    return attempts, attempts >= (attempts_max or ATTEMPTS_MAX)
end

-- When the oldest of some tasks that can be taken became ready. The library passes a function that returns the next candidate in the
-- order of takes: since when it is ready, and whether that is since its put. Within a priority ids are in the order of puts, so the
-- function may skip the rest of a priority behind a task that is ready since its put.
local function oldest_of(next_candidate)
    local oldest = nil
    for _ = 1, {{OLDEST_LOOKED_MAX}} do
        local since = next_candidate()
        if not since then
            break
        end
        oldest = (not oldest or since < oldest) and since or oldest
    end
    return oldest
end
