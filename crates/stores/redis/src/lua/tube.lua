-- One tube during a call. Its keys have one hash tag, so that they are on one node of a cluster: o options, m numbers, t records, b large
-- bodies, r takeable tasks by (pri, id), q ready tasks by sub-queue, u busy sub-queues, h the task of each idle sub-queue that is in r,
-- d buried, w deadlines, x deliveries, s tasks that each session holds, f failures; k, a, e and i are done tasks (done.lua), y, j and z
-- keys (keys.lua), l the bucket of a rate limit (pace.lua), c what schedules did last (schedules.lua).
--
-- Changes are noted and written together in as few commands as possible, because each command goes to the log of Redis.

-- Most values of one command; the stack of Lua has room for a few thousand.
local VALUES_MAX = 1000
-- Most tasks that are read together.
local TAKE_STEP = 200

-- The options that can be altered; the queue number, the name and the semaphore follow. Before the name of a tube that keeps done tasks
-- are this number, how long it keeps them, and how many. Functions of earlier versions read the number as the length of the name, and stop
-- before they change anything. So they do with the other number of a tube that has or had tasks with keys or their own number of attempts,
-- a retry policy or a rate limit: the same, the policy and the limit (pace.lua) are before its name.
local OPTIONS = '<BBI4dddI4c8c8'
local OPTIONS_BYTES = 50
local TAIL = '<I4I2c0I2c0'
done_tasks.TAIL, done_tasks.KEEPING = '<I4I2ddI2c0I2c0', 65535
pace.EXTENDED = 65534
-- Instead of how long: done tasks are not kept; the same, but some may be left that a tick removes.
local NONE_KEPT = -1
done_tasks.SOME_LEFT = -2
local TEMPORARY, TTL_KILLS_TAKEN, PAUSED, HAS_CAPACITY = 1, 2, 4, 8
-- It has or had tasks with keys or their own number of attempts; it has keys of ended tasks.
keyring.USED, keyring.ENDED = 16, 32

-- Epoch, next id, delayed and gated tasks, done, then a counter for each kind of call.
local NUMBERS = '<ddddddddddddddd'
local EPOCH, NEXT_ID, DELAYED_COUNT, DONE = 1, 2, 3, 4
local CALLS = { ack = 5, bury = 6, delete = 7, kick = 8, put = 9, release = 10, take = 11, touch = 12, ttl = 13, ttr = 14, delay = 15 }

local function has(flags, flag)
    return math.floor(flags / flag) % 2 == 1
end

local function read_options(raw)
    local o, tail, marker = { raw = raw, keep_done = NONE_KEPT, keep_done_max = {{KEEP_DONE_DEFAULT}} }, OPTIONS_BYTES + 1, nil
    o.kind, o.flags, o.number, o.ttl, o.ttr, o.delay, o.attempts_max, o.pri, o.capacity_bytes = struct.unpack(OPTIONS, raw)
    o.queue, marker = struct.unpack('<I4I2', raw, tail)
    if marker == done_tasks.KEEPING then
        o.queue, marker, o.keep_done, o.keep_done_max, o.name, o.semaphore = struct.unpack(done_tasks.TAIL, raw, tail)
    elseif marker == pace.EXTENDED then
        pace.read_options(o, raw, tail)
    else
        o.queue, o.name, o.semaphore = struct.unpack(TAIL, raw, tail)
    end
    o.has_done = o.keep_done ~= NONE_KEPT
    o.times, o.subqueues = kind_traits(o.kind)
    o.plain = not o.subqueues and o.semaphore == ''
    o.paused = has(o.flags, PAUSED)
    o.keyed, o.ended_keys = has(o.flags, keyring.USED), has(o.flags, keyring.ENDED)
    o.ttl_kills_taken = has(o.flags, TTL_KILLS_TAKEN)
    if has(o.flags, HAS_CAPACITY) then
        o.capacity = struct.unpack('>I8', o.capacity_bytes)
    end
    return o
end

-- Decoded options by their text: every call opens a tube, but options change rarely.
local decoded_options, decoded_count = {}, 0

local function options_of(raw)
    local options = decoded_options[raw]
    if not options then
        if decoded_count >= 1000 then
            decoded_options, decoded_count = {}, 0
        end
        options = read_options(raw)
        decoded_options[raw] = options
        decoded_count = decoded_count + 1
    end
    return options
end

-- Changes these options of a tube.
local function change_options(tube, changes)
    local o, tail = {}, nil
    for key, value in pairs(tube.options) do
        o[key] = value
    end
    for key, value in pairs(changes) do
        o[key] = value
    end
    if o.retry or o.rate or has(o.flags, keyring.USED) then
        tail = pace.options_tail(o)
    elseif o.keep_done == NONE_KEPT and o.keep_done_max == {{KEEP_DONE_DEFAULT}} then
        tail = struct.pack(TAIL, o.queue, #o.name, o.name, #o.semaphore, o.semaphore)
    else
        tail = struct.pack(done_tasks.TAIL, o.queue, done_tasks.KEEPING, o.keep_done, o.keep_done_max, #o.name, o.name, #o.semaphore, o.semaphore)
    end
    local raw = struct.pack(OPTIONS, o.kind, o.flags, o.number, o.ttl, o.ttr, o.delay, o.attempts_max, o.pri, o.capacity_bytes) .. tail
    redis.call('SET', tube.base .. ':o', raw)
    tube.options = options_of(raw)
end

-- Discards noted changes.
local function forget_notes(tube)
    tube.t, tube.b, tube.r, tube.q, tube.u, tube.d, tube.w, tube.x, tube.s, tube.keys = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
    tube.noted, tube.f, tube.kept = false, nil, nil
end

local function new_tube(base, now, raw, numbers)
    local tube = { base = base, now = now, options = options_of(raw), numbers = numbers, tasks = {} }
    -- A plain tube mostly uses the fast path, which notes nothing.
    if not tube.options.plain then
        forget_notes(tube)
    end
    return tube
end

local function count(tube, call, more)
    tube.numbers[CALLS[call]] = tube.numbers[CALLS[call]] + (more or 1)
end

-- The prefix of the members of a sub-queue. The length comes first, so that no prefix is the beginning of another.
local function subqueue_prefix(key)
    return struct.pack('>I2', #key) .. key
end

local function note_ready(tube, id, task, there)
    -- The window of the last take is out of date.
    tube.window = nil
    if tube.options.subqueues then
        tube.q[subqueue_prefix(task.subqueue) .. task.pri .. id] = there
        tube.keys[task.subqueue] = true
    else
        tube.r[task.pri .. id] = there
    end
    tube.noted = true
end

-- Removes a task from the orders of its state. An expired one may have left the order of ready tasks before.
local function leave(tube, id, task)
    if task.state == READY then
        note_ready(tube, id, task, false)
    elseif task.state == TAKEN then
        tube.x[id] = false
        if tube.options.subqueues then
            tube.u[task.subqueue] = false
            tube.keys[task.subqueue] = true
            tube.window = nil
        end
        if task.flags >= HAS_SESSION then
            tube.s[task.session .. id] = false
        end
    elseif task.state == DELAYED or task.state == GATED then
        tube.numbers[DELAYED_COUNT] = tube.numbers[DELAYED_COUNT] - 1
    else
        tube.d[task.pri .. id] = false
    end
    if timer_of(task) ~= NEVER then
        tube.w[id] = false
    end
end

-- Notes that the record changed; a delivery does not change it.
local function note_record(tube, id, task)
    task.text = nil
    tube.t[id] = task
end

-- Adds a task to the orders of its new state.
local function enter(tube, id, task)
    if task.state == READY then
        note_ready(tube, id, task, true)
        tube.notify = true
    elseif task.state == TAKEN then
        tube.x[id] = task
        if tube.options.subqueues then
            tube.u[task.subqueue] = true
            tube.keys[task.subqueue] = true
        end
        if task.flags >= HAS_SESSION then
            tube.s[task.session .. id] = true
        end
    elseif task.state == DELAYED or task.state == GATED then
        tube.numbers[DELAYED_COUNT] = tube.numbers[DELAYED_COUNT] + 1
    else
        tube.d[task.pri .. id] = true
    end
    local timer = timer_of(task)
    if timer ~= NEVER then
        tube.w[id] = timer
    end
    tube.tasks[id] = task
    tube.noted = true
    if task.state ~= TAKEN then
        note_record(tube, id, task)
    end
end

-- Notes the failures of a task as text, or that it has none.
local function note_failures(tube, id, text)
    tube.f = tube.f or {}
    tube.f[id] = text
end

-- Removes a task from the tube. The large body and the failures of one that is kept as done stay.
local function remove(tube, id, task, is_kept)
    leave(tube, id, task)
    tube.tasks[id] = false
    tube.t[id] = false
    if not task.body and not is_kept then
        tube.b[id] = false
    end
    if task.failed and not is_kept then
        note_failures(tube, id, false)
    end
    tube.noted = true
    if task.key then
        keyring.finish(tube, id, task)
    end
    -- Callers that wait for room, or for the sub-queue, may continue.
    tube.notify = tube.notify or tube.options.capacity or tube.options.subqueues
    tube.numbers[DONE] = tube.numbers[DONE] + 1
end

local function send(verb, key, values)
    if #values <= VALUES_MAX then
        if #values > 0 then
            redis.call(verb, key, unpack(values))
        end
        return
    end
    for first = 1, #values, VALUES_MAX do
        redis.call(verb, key, unpack(values, first, math.min(first + VALUES_MAX - 1, #values)))
    end
end

local function write_hash(key, noted, text_of)
    local set, gone = {}, {}
    for field, value in pairs(noted) do
        if value then
            set[#set + 1] = field
            set[#set + 1] = text_of and text_of(value) or value
        else
            gone[#gone + 1] = field
        end
    end
    send('HSET', key, set)
    send('HDEL', key, gone)
end

-- Moments as text: many consecutive ones are equal.
local last_score, last_score_text = 0, '0'

local function score_text(score)
    if score ~= last_score then
        last_score, last_score_text = score, string.format('%.0f', score)
    end
    return last_score_text
end

-- Writes an order; a score of true is 0, for orders by name only.
local function write_order(key, noted, tall)
    local set, gone = tall and next(noted) and { '+inf', TALL } or {}, {}
    for member, score in pairs(noted) do
        if score then
            -- Redis would format a number with all its digits, which is slower than all else here.
            set[#set + 1] = score == true and '0' or score_text(score)
            set[#set + 1] = member
        else
            gone[#gone + 1] = member
        end
    end
    send('ZREM', key, gone)
    send('ZADD', key, set)
end

local function write_set(key, noted)
    local set, gone = {}, {}
    for member, there in pairs(noted) do
        local list = there and set or gone
        list[#list + 1] = member
    end
    send('SREM', key, gone)
    send('SADD', key, set)
end

local HIGHEST = '\255\255\255\255\255\255\255\255\255\255\255\255\255\255\255\255'

-- Puts the first ready task of an idle sub-queue into the order of takeable tasks, and none of a busy one.
local function update_subqueue(base, key)
    local head = false
    if redis.call('SISMEMBER', base .. ':u', key) == 0 then
        local prefix = subqueue_prefix(key)
        local first = redis.call('ZRANGEBYLEX', base .. ':q', '[' .. prefix, '[' .. prefix .. HIGHEST, 'LIMIT', 0, 1)[1]
        head = first and string.sub(first, #prefix + 1) or false
    end
    local before = redis.call('HGET', base .. ':h', key)
    if head == before then
        return
    end
    if before then
        redis.call('ZREM', base .. ':r', before)
    end
    if head then
        redis.call('ZADD', base .. ':r', 0, head)
        redis.call('HSET', base .. ':h', key, head)
    else
        redis.call('HDEL', base .. ':h', key)
    end
end

-- Writes noted changes. Code that reads an order calls this first.
local function flush(tube)
    if tube.pending then
        plain.flush(tube)
    end
    if not tube.noted then
        return
    end
    local base = tube.base
    write_hash(base .. ':t', tube.t, encode)
    write_hash(base .. ':b', tube.b)
    write_order(base .. ':r', tube.r)
    write_order(base .. ':w', tube.w, true)
    write_order(base .. ':d', tube.d)
    write_order(base .. ':s', tube.s)
    write_hash(base .. ':x', tube.x, encode_delivery)
    if tube.f then
        write_hash(base .. ':f', tube.f)
    end
    if tube.kept then
        done_tasks.flush(tube)
    end
    if tube.options.subqueues then
        write_order(base .. ':q', tube.q)
        write_set(base .. ':u', tube.u)
        for key in pairs(tube.keys) do
            update_subqueue(base, key)
        end
    end
    forget_notes(tube)
end

-- Reads the records of these ids, unless they are loaded.
local function load(tube, ids, untaken)
    local unknown, asked = {}, {}
    for _, id in ipairs(ids) do
        if tube.tasks[id] == nil and not asked[id] then
            asked[id] = true
            unknown[#unknown + 1] = id
        end
    end
    for first = 1, #unknown, VALUES_MAX do
        local last = math.min(first + VALUES_MAX - 1, #unknown)
        local records = redis.call('HMGET', tube.base .. ':t', unpack(unknown, first, last))
        local taken = untaken and {} or redis.call('HMGET', tube.base .. ':x', unpack(unknown, first, last))
        for place, record in ipairs(records) do
            tube.tasks[unknown[first + place - 1]] = record and decode(record, taken[place]) or false
        end
    end
end

-- The ids of all taken tasks.
local function taken_ids(tube)
    flush(tube)
    return redis.call('HKEYS', tube.base .. ':x')
end

-- The number of all tasks.
local function total(tube)
    flush(tube)
    return redis.call('HLEN', tube.base .. ':t')
end

-- Removes all tasks.
local function empty(tube)
    local base = tube.base
    redis.call('UNLINK', base .. ':t', base .. ':b', base .. ':r', base .. ':q', base .. ':u', base .. ':h', base .. ':d',
        base .. ':w', base .. ':x', base .. ':s', base .. ':f', base .. ':k', base .. ':a', base .. ':e', base .. ':i')
    if tube.options.keyed then
        keyring.empty(tube)
    end
    forget_notes(tube)
    tube.tasks, tube.window, tube.pending = {}, nil, nil
    tube.numbers[DELAYED_COUNT] = 0
    tube.notify = true
end
