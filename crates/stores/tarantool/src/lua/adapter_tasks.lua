-- Reads the tasks of an existing tarantool/queue in the spaces of its tubes.

local bit, msgpack = require('bit'), require('msgpack')

local STATES = { r = READY, t = TAKEN, ['~'] = DELAYED, ['!'] = BURIED, ['-'] = DONE }
-- Positions of fields in the tuples of each type.
local LAYOUTS = {
    fifo = { data = 3 },
    utube = { utube = 3, data = 4 },
    fifottl = { at = 3, ttl = 4, ttr = 5, pri = 6, created = 7, data = 8 },
    limfifottl = { at = 3, ttl = 4, ttr = 5, pri = 6, created = 7, data = 8 },
    utubettl = { at = 3, ttl = 4, ttr = 5, pri = 6, created = 7, utube = 8, data = 9 },
}

-- The whole tuple of a task; methods return only a part.
local function tuple_of(tube, id)
    return tube.space:get(id)
end

local function whole(value, otherwise)
    return value == nil and otherwise or tonumber(value)
end

-- A task as answers show it.
local function view(tube, task, state, delivery, body)
    local at = tube.layout or LAYOUTS.fifo
    local ttl = at.ttl and whole(task[at.ttl], FOREVER) or FOREVER
    local created = at.created and whole(task[at.created], 0) or 0
    local due = state == DELAYED and at.at and stamp(whole(task[at.at], 0)) or NULL
    local reason = { [READY] = { REASONS.waits }, [TAKEN] = { REASONS.running }, [DELAYED] = { REASONS.not_due, due }, [BURIED] = { REASONS.buried },
        [DONE] = { REASONS.finished } }
    return { task[1], state, at.pri and task[at.pri] or 0, created, stamp(later(created, ttl)),
        at.ttr and math.min(whole(task[at.ttr], FOREVER), FOREVER) or FOREVER, 0, reason[state],
        body and msgpack.encode(task[at.data]) or NULL,
        delivery and { delivery.lease, stamp(delivery.ending), delivery.start, delivery.session or NULL } or NULL, NULL, due,
        at.utube and task[at.utube] or NULL }
end

-- Whether the module removes a task soon.
local function is_expired(c, at, task)
    local state = STATES[task[2]]
    return at.ttl and (state == READY or state == BURIED)
        and later(whole(task[at.created], 0), whole(task[at.ttl], FOREVER)) <= c.now or false
end

-- Lets other fibers run after each STEP rows of a list.
local function pause(rows)
    if rows % STEP == 0 then
        fiber.sleep(0)
    end
end

-- A page by id of tasks in some states, from all tasks of the tube.
local function list_by_id(c, tube, states, after, limit)
    local at, page, rows = tube.layout or LAYOUTS.fifo, {}, 0
    -- The module keeps no done tasks.
    states = bit.band(states, bit.bnot(bit.lshift(1, DONE)))
    for _, task in tube.space:pairs({ after }, { iterator = after ~= nil and 'GT' or 'GE' }) do
        if #page == limit then
            break
        elseif bit.band(states, bit.lshift(1, STATES[task[2]] or DONE)) ~= 0 and not is_expired(c, at, task) then
            page[#page + 1] = { task[1], at.pri and task[at.pri] or 0 }
        end
        rows = rows + 1
        pause(rows)
    end
    return page
end

-- The sub-queues that have a taken task.
local function busy_subqueues(tube)
    local busy, rows = {}, 0
    for _, task in tube.space.index.status:pairs({ 't' }) do
        busy[task[tube.layout.utube]] = true
        rows = rows + 1
        pause(rows)
    end
    return busy
end

-- A page of ready tasks in the order of takes. In a tube with sub-queues it reads from the first task on, because of each sub-queue only the
-- first task counts.
local function list_in_queue(c, tube, pri, id, limit)
    local at, page, rows, key = tube.layout, {}, 0, { 'r' }
    local passed = at.utube and busy_subqueues(tube)
    if not at.utube and pri ~= nil then
        key = at.pri and { 'r', pri, id } or { 'r', pri == 0 and id or STORED_NEVER }
    end
    for _, task in tube.space.index.status:pairs(key, { iterator = 'GE' }) do
        if task[2] ~= 'r' or #page == limit then
            break
        end
        local subqueue, own = at.utube and task[at.utube], at.pri and task[at.pri] or 0
        if not is_expired(c, at, task) and not (passed and passed[subqueue]) then
            if passed then
                passed[subqueue] = true
            end
            if pri == nil or own > pri or own == pri and task[1] > id then
                page[#page + 1] = { task[1], own }
            end
        end
        rows = rows + 1
        pause(rows)
    end
    return page
end
