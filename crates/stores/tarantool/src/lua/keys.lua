-- Unique keys of tasks: which task holds which key. `keys.rs` of the core has the rule.
--
-- A task has its key in its row. The row of a key has its holder, also while the key is still held after the end of that task; until when
-- is in the space of ended tasks.

-- A key: its tube, the key, its holder. An ended task: its tube, id, the moment at which its key is free, the key.
local HOLDER, FREE_AT, ENDED_KEY = 3, 3, 4
-- Keys that are free are forgotten in groups: when the clock, in microseconds, is at a multiple of this.
local CLEANUP_EVERY = 10 * 1000000

-- A put is about to give a task a key or its own number of attempts. Answers a refusal if that cannot be stored.
function keys.begin()
    return formats.need(3, 'key', 'unique keys and attempts of tasks')
end

-- Adds to the number of ended tasks whose keys are held, which is written when the tube is. `cleanup` is when some are to be forgotten, as
-- far as it is known.
local function count_more(tube, more)
    if not tube.ended then
        local row = S.ended_count:get(tube.number)
        tube.ended, tube.cleanup = row and row[3] or 0, row and moment(row[2]) or nil
    end
    tube.ended, tube.ended_changed = tube.ended + more, true
end

-- When a tick forgets a key that is free from this moment on.
local function cleanup_at(free_at)
    return math.ceil(moment(free_at) / CLEANUP_EVERY) * CLEANUP_EVERY
end

-- The ended task of a tube whose key is free first.
local function first_ended(of)
    return S.ended.index[1]:select({ of }, { limit = 1 })[1]
end

-- Writes the number of ended tasks, and when some of their keys are to be forgotten.
function keys.flush(tube)
    tube.ended_changed = nil
    if not tube.cleanup then
        local first = first_ended(tube.number)
        tube.cleanup = first and cleanup_at(first[FREE_AT])
    end
    if tube.cleanup then
        S.ended_count:replace({ tube.number, tube.cleanup, tube.ended })
    else
        S.ended_count:delete(tube.number)
    end
end

-- Counts the keys of ended tasks of all tubes after this instance started or became writable.
function keys.count_all()
    if not S.key then
        return
    end
    for _, row in ipairs(S.ended_count:select()) do
        S.ended_count:delete(row[1])
    end
    for _, row in S.tube:pairs() do
        keys.flush({ number = row[1], ended = S.ended:count({ row[1] }) })
    end
end

-- Forgets the key of an ended task.
local function forget(tube, ended)
    S.ended:delete({ tube.number, ended[2] })
    S.key:delete({ tube.number, ended[ENDED_KEY] })
    count_more(tube, -1)
    tube.cleanup = nil
end

-- Adds the key of a task that has ended.
local function add_ended(tube, id, free_at, key)
    S.ended:insert({ tube.number, id, stamp(free_at), key })
    count_more(tube, 1)
    if tube.cleanup then
        tube.cleanup = math.min(tube.cleanup, cleanup_at(free_at))
    end
end

-- A task with a key ends now, or has ended with its time to live: the key is free, or stays held for some time.
function keys.release(c, tube, task, delivery)
    local of, key, ended_at = tube.number, task[KEY], c.now
    if not delivery then
        ended_at = math.min(moment(task[EXPIRES]), c.now)
    end
    local free_at = later(ended_at, tonumber(task[UNIQUE_FOR]))
    if free_at <= c.now then
        S.key:delete({ of, key })
        return
    end
    add_ended(tube, task[ID], free_at, key)
    if tube.ended > {{ENDED_KEYS_MAX}} then
        local first = first_ended(of)
        c.freed_early = c.freed_early + (first[FREE_AT] > c.now and 1 or 0)
        forget(tube, first)
    end
end

-- The holder of a key: its id, and its task and delivery unless it has ended. A holder whose time to live is over is removed first, and
-- its id added to `expired`.
function keys.find(c, tube, key, expired)
    local row = S.key:get({ tube.number, key })
    if not row then
        return nil
    end
    local id = row[HOLDER]
    local task, delivery = S.task:get({ tube.number, id }), delivery_of(tube, id)
    if task and (delivery or task[EXPIRES] > c.now) then
        return id, task, delivery
    elseif task then
        expire(c, tube, task)
        expired[#expired + 1] = id
    end
    local ended = S.ended:get({ tube.number, id })
    if ended and ended[FREE_AT] > c.now then
        return id
    elseif ended then
        forget(tube, ended)
    end
    return nil
end

-- Whether a key is held; changes nothing.
local function is_held(c, tube, key)
    local row = S.key:get({ tube.number, key })
    if not row then
        return false
    end
    local task = S.task:get({ tube.number, row[HOLDER] })
    if not task then
        return S.ended:get({ tube.number, row[HOLDER] })[FREE_AT] > c.now
    end
    local expires = moment(task[EXPIRES])
    return expires > c.now or delivery_of(tube, row[HOLDER]) ~= nil or later(expires, tonumber(task[UNIQUE_FOR])) > c.now
end

-- How many of these tasks a put would add.
function keys.count_added(c, tube, tasks)
    local new, added = {}, 0
    for _, task in ipairs(tasks) do
        local key = task[9] ~= nil and task[9][1] or nil
        if not key or not new[key] and not is_held(c, tube, key) then
            new[key or false], added = true, added + 1
        end
    end
    return added
end

-- Gives a key to a task.
function keys.hold(tube, id, key)
    S.key:insert({ tube.number, key, id })
end

-- Forgets keys of a tube that are free, at most so many. Answers how many.
local function trim(c, tube, limit)
    local removed = 0
    while removed < limit do
        local first = first_ended(tube.number)
        if not first or cleanup_at(first[FREE_AT]) > c.now then
            break
        end
        forget(tube, first)
        removed = removed + 1
    end
    return removed
end

-- Forgets keys of all tubes that are free, at most so many. Answers how many.
function keys.tick(c, limit)
    local removed = 0
    while S.key and removed < limit do
        local first = S.ended_count.index[1]:min()
        if not first or first[2] > c.now then
            break
        end
        local tube = open_number(c, first[1])
        removed = removed + trim(c, tube, limit - removed)
        flush(tube)
    end
    return removed
end

-- When a tick has to forget some.
function keys.wakeup()
    local first = S.key and S.ended_count.index[1]:min()
    return first and moment(first[2]) or NEVER
end

-- The unfinished task with this key, if a page by id has it.
function keys.listed(c, tube, key, first, has)
    local row = S.key and S.key:get({ tube.number, key })
    local task = row and row[HOLDER] >= first and S.task:get({ tube.number, row[HOLDER] })
    return task and has(c, task, delivery_of(tube, row[HOLDER])) and { { task[ID], task[PRI] } } or {}
end

-- Ended tasks of a tube from this id on, at most so many: id, the moment at which its key is free, the key.
function keys.export(of, from, count)
    local found = {}
    for place, row in ipairs(S.key and S.ended:select({ of, from }, { iterator = 'GE', limit = count }) or {}) do
        if row[1] ~= of then
            break
        end
        found[place] = { row[2], row[FREE_AT], row[ENDED_KEY] }
    end
    return found
end

-- The key of a task from another store.
function keys.import(tube, id, key)
    if S.key:get({ tube.number, key }) then
        error(string.format("cannot import task %d into tube '%s': its key is held", id, tube.name), 0)
    end
    keys.hold(tube, id, key)
end

-- The key of an ended task from another store, unless it is there already.
function keys.import_ended(tube, id, free_at, key)
    local row = S.key:get({ tube.number, key })
    if row and row[HOLDER] ~= id or S.task:get({ tube.number, id }) then
        error(string.format("cannot import key '%s' into tube '%s': it is held", key, tube.name), 0)
    elseif not S.ended:get({ tube.number, id }) then
        keys.hold(tube, id, key)
        add_ended(tube, id, moment(free_at), key)
    end
end
