-- One tube during a call: its options and its counts. Both are read once and written once.

local KINDS = { fifo = 0, fifottl = 1, limfifottl = 2, utube = 3, utubettl = 4 }
local CALLS = { 'ack', 'bury', 'delete', 'kick', 'put', 'release', 'take', 'touch', 'ttl', 'ttr', 'delay' }

-- Positions of options in requests and answers.
local O = { kind = 1, pri = 2, temporary = 3, ttl_kills_taken = 4, paused = 5, capacity = 6, ttl = 7, ttr = 8, delay = 9, attempts_max = 10,
    semaphore = 11, queue_num = 12, keep_done = 13, keep_done_max = 14, retry = 15, rate = 16 }

local function read_options(row)
    local times, subqueues = kind_traits(KINDS[row[O.kind]])
    return {
        kind = row[O.kind],
        times = times,
        subqueues = subqueues,
        pri = row[O.pri],
        temporary = row[O.temporary],
        ttl_kills_taken = row[O.ttl_kills_taken],
        paused = row[O.paused],
        capacity = given(row[O.capacity]),
        ttl = number(row[O.ttl]),
        ttr = number(row[O.ttr]),
        delay = number(row[O.delay]),
        attempts_max = given(row[O.attempts_max]),
        semaphore = given(row[O.semaphore]),
        keep_done = number(row[O.keep_done]),
        keep_done_max = number(row[O.keep_done_max]),
        retry = row[O.retry] ~= nil and pace.policy_of(row[O.retry]) or nil,
        rate = row[O.rate] ~= nil and pace.limit_of(row[O.rate]) or nil,
    }
end

-- The list of options with nulls instead of missing values.
local function whole_options(row, size)
    local whole = {}
    for place = 1, size or math.max(#row, O.keep_done_max) do
        local value = row[place]
        whole[place] = value == nil and NULL or value
    end
    return whole
end

-- The stored counts of a tube.
local function read_live(row)
    local n = {}
    n.next, n.ready, n.taken, n.buried, n.delayed, n.takeable, n.done = row:unpack(2, 8)
    n.next = moment(n.next)
    for place, call in ipairs(CALLS) do
        n[call] = row[8 + place]
    end
    return n
end

local function live_row(tube)
    local n = tube.n
    return { tube.number, stamp(n.next), n.ready, n.taken, n.buried, n.delayed, n.takeable, n.done, n.ack, n.bury,
        n.delete, n.kick, n.put, n.release, n.take, n.touch, n.ttl, n.ttr, n.delay }
end

local function write_live(tube, row)
    tube.live = S.live:replace(row or live_row(tube))
end

-- Whether the counts changed. A transaction that writes nothing to the log must not write here either: without a log row it commits at once,
-- before others that still wait for the log, and Tarantool aborts if it must roll back one of those and finds the row overwritten.
local function has_changed(row, live)
    for place = 2, #row do
        if row[place] ~= live[place] then
            return true
        end
    end
    return false
end

local function add_tube(c, row)
    local tube = { number = row[1], name = row[2], options = row[3], next_id = row[4], queue_num = given(row[5]), now = c.now }
    tube.o = read_options(tube.options)
    tube.live = S.live:get(tube.number)
    tube.n = read_live(tube.live)
    c.by_name[tube.name] = tube
    c.by_number[tube.number] = tube
    return tube
end

local function open_tube(c, name)
    local tube = c.by_name[name]
    if tube then
        return tube
    end
    local row = S.tube.index[1]:get(name)
    return row and add_tube(c, row)
end

local function open_number(c, of)
    local tube = c.by_number[of]
    if tube then
        return tube
    end
    local row = S.tube:get(of)
    return row and add_tube(c, row)
end

local function total(tube)
    local n = tube.n
    return n.ready + n.taken + n.buried + n.delayed
end

local function takeable(tube)
    if tube.o.paused then
        return 0
    end
    return tube.o.rate and pace.takeable(tube) or tube.n.takeable
end

-- How many more tasks it may hold; nil where there is no limit.
local function room(tube)
    local capacity = tube.o.capacity
    if not capacity then
        return nil
    end
    local all = total(tube)
    return capacity > all and capacity - all or 0
end

local function first_moment(space, tube, field)
    local first = space:select({ tube.number }, { limit = 1 })[1]
    return first and moment(first[field]) or NEVER
end

-- The next deadline of a tube, or when its rate limit allows to take a waiting task.
local function next_moment(tube)
    local next_at = first_moment(S.taken.index[1], tube, D_UNTIL)
    next_at = math.min(next_at, first_moment(S.delayed, tube, 2))
    next_at = math.min(next_at, first_moment(S.expiry, tube, 2))
    if tube.o.rate and not tube.o.paused and tube.n.takeable > 0 then
        next_at = math.min(next_at, pace.next_delivery(tube))
    end
    return next_at
end

local function write_row(tube)
    S.tube:replace({ tube.number, tube.name, tube.options, tube.next_id, tube.queue_num or NULL })
end

-- Writes the changes of a tube.
local function flush(tube)
    if tube.renewed then
        tube.renewed = false
        write_row(tube)
    end
    if tube.changed then
        tube.changed = false
        tube.n.next = next_moment(tube)
        local row = live_row(tube)
        if has_changed(row, tube.live) then
            write_live(tube, row)
        end
    end
    if tube.kept_at then
        done_tasks.flush(tube)
    end
    if tube.ended_changed then
        keys.flush(tube)
    end
end

-- Notes that a tube changed: callers may wait for its tasks, or for room in it. So many deliveries failed without a command for them.
local function mark_changed(c, tube, failed)
    tube.changed = true
    c.changed_tubes[tube.number] = true
    if failed and failed > 0 then
        c.failed[tube.number] = (c.failed[tube.number] or 0) + failed
    end
end

-- Counts the tasks of a tube after this instance started or became writable.
local function count_tube(of)
    local function count(space)
        return space:count({ of })
    end
    local taken, buried, takeables = count(S.taken), count(S.buried), count(S.ready)
    local all = S.task:count({ of })
    local waits = count(S.delayed) + count(S.gated)
    local tube = { number = of, o = {} }
    tube.n = { ready = all - taken - buried - waits, taken = taken, buried = buried, delayed = waits, takeable = takeables,
        done = 0, ack = 0, bury = 0, delete = 0, kick = 0, put = 0, release = 0, take = 0, touch = 0, ttl = 0, ttr = 0, delay = 0 }
    -- A tube with a rate limit is looked at by the next tick.
    tube.n.next = S.bucket and S.bucket:get(of) and 0 or next_moment(tube)
    write_live(tube)
end
