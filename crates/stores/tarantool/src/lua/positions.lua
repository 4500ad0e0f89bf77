-- Shows where waiting tasks are in the queue. Few tasks are counted exactly, the number of many is estimated. Like a list, it writes nothing, and
-- a call with it has no other command and is not a transaction, so that long work yields.

local AHEAD_COUNTED_MAX, SUBQUEUE_COUNTED_MAX = {{AHEAD_COUNTED_MAX}}, {{SUBQUEUE_COUNTED_MAX}}
local DELAYED_LOOKED_MAX, GATE_LOOKED_MAX, DELAYED_PERIODS = {{DELAYED_LOOKED_MAX}}, {{GATE_LOOKED_MAX}}, {{DELAYED_PERIODS}}
-- In how many sub-queues the tasks ahead are counted, for all tasks of a command together.
local SUBQUEUES_MAX = 512

local is_before = positions.is_before

-- The number of the command.
positions.NUMBER = 22

-- How many ready tasks of a sub-queue are before a place; counts up to `most`. Answers also the place of the last.
local function ahead_in(of, key, pri, id, most)
    return positions.count_rows(S.line, { of, key }, most, function(row)
        return row[1] == of and row[2] == key and is_before(row[3], row[4], pri, id) and { of, key, row[3], row[4] }
    end)
end

-- How many ready tasks of all sub-queues are before a place, if few of these have any: those whose first task is before it, and the busy
-- ones. Otherwise nil.
local function ahead_in_few(tube, pri, id, most)
    local of, known, ahead = tube.number, {}, 0
    if tube.n.taken > most or positions.ready_between(of, { of }, pri, id, most) == most then
        return nil
    end
    for _, row in S.taken:pairs({ of }) do
        known[S.task:get({ of, row[D_ID] })[SUBQUEUE]] = true
    end
    for _, row in S.ready:pairs({ of }) do
        if not is_before(row[2], row[3], pri, id) then
            break
        end
        known[S.task:get({ of, row[3] })[SUBQUEUE]] = true
    end
    for key in pairs(known) do
        ahead = ahead + ahead_in(of, key, pri, id, AHEAD_COUNTED_MAX)
        if ahead >= AHEAD_COUNTED_MAX then
            return nil
        end
    end
    return ahead
end

-- The same as ready_before in a tube with sub-queues.
local function ready_in_subqueues(c, tube, shared, pri, id)
    if tube.n.ready <= AHEAD_COUNTED_MAX then
        shared.all = shared.all or positions.all_in_subqueues(tube.number)
        return (positions.in_sample(shared.all, pri, id, false)), true
    end
    local ahead = ahead_in_few(tube, pri, id, math.floor(SUBQUEUES_MAX / shared.size))
    if ahead then
        return ahead, true
    end
    return positions.estimated(c, tube, shared, pri, id)
end

-- How many ready tasks are before a place, and whether that is exact. Calls come in the order of the queue, and only tasks after the
-- previous place are counted.
local function ready_before(c, tube, shared, pri, id)
    local of = tube.number
    local bounded, is_exact = positions.bounded(tube, pri, id)
    if bounded then
        shared.last, shared.is_exact = { of, pri, id }, is_exact
        shared.ahead = is_exact and bounded or math.max(shared.ahead, bounded)
        return shared.ahead, is_exact
    end
    local more = positions.ready_between(of, shared.last or { of }, pri, id, AHEAD_COUNTED_MAX)
    if more == AHEAD_COUNTED_MAX then
        local ahead
        ahead, is_exact = positions.estimated(c, tube, shared, pri, id)
        shared.ahead, shared.is_exact = is_exact and ahead or math.max(shared.ahead + more, ahead), is_exact
    else
        shared.ahead = shared.ahead + more
    end
    shared.last = { of, pri, id }
    return shared.ahead, shared.is_exact
end

-- The tasks that are expired and still among the ready ones, and whether these are all.
local function expired_ready(c, tube)
    local of, found, rows = tube.number, {}, 0
    for _, row in S.expiry:pairs({ of }) do
        if row[2] > c.now or rows == DELAYED_LOOKED_MAX then
            break
        end
        rows = rows + 1
        local task = S.task:get({ of, row[3] })
        if task[STATE] == READY and positions.is_in_order(tube, task) then
            found[#found + 1] = { task[PRI], task[ID], given(task[SUBQUEUE]) }
        end
    end
    return found, rows < DELAYED_LOOKED_MAX
end

-- How many of these expired tasks are before a place, in all and in its sub-queue.
local function expired_before(expired, pri, id, key)
    local all, own = 0, 0
    for _, task in ipairs(expired) do
        if is_before(task[1], task[2], pri, id) then
            all, own = all + 1, own + (task[3] == key and 1 or 0)
        end
    end
    return all, own
end

-- The place of a task in its sub-queue, and whether it is exact. Beyond the tasks that are counted, the sub-queue is taken to have the
-- same share of all ready tasks as before; `ahead` is the number of these before the task.
local function subqueue_position(c, tube, shared, task, ahead)
    local of, key, pri, id = tube.number, task[SUBQUEUE], task[PRI], task[ID]
    local own, last = ahead_in(of, key, pri, id, SUBQUEUE_COUNTED_MAX)
    local is_exact = own < SUBQUEUE_COUNTED_MAX
    if not is_exact then
        local before = math.max(positions.estimated(c, tube, shared, last[3], last[4]), own)
        own = math.floor(own * math.max(ahead / before, 1) + 0.5)
    end
    local row = S.subqueue:get({ of, key })
    return own, row ~= nil and row[3] > 0, is_exact
end

-- The period of a delay, from 1: within one second, two, four and so on.
local function period_of(delay)
    local period, seconds = 1, 1
    while seconds * 1000000 < delay do
        period, seconds = period + 1, seconds * 2
    end
    return period
end

-- For each of these tasks, which are in the order of the queue, how many of the delayed tasks before it are due within each period. Those
-- that are due first are counted.
local function delayed_before(c, tube, tasks)
    local counts = {}
    for place = 1, #tasks do
        counts[place] = {}
    end
    for _, row in ipairs(tube.n.delayed > 0 and S.delayed:select({ tube.number }, { limit = DELAYED_LOOKED_MAX }) or {}) do
        local period = period_of(moment(row[2]) - c.now)
        if period > DELAYED_PERIODS then
            break
        end
        local pri, id = S.task:get({ tube.number, row[3] })[PRI], row[3]
        -- The first of the tasks that it is before.
        local low, high = 1, #tasks + 1
        while low < high do
            local middle = math.floor((low + high) / 2)
            if is_before(pri, id, tasks[middle][PRI], tasks[middle][ID]) then
                high = middle
            else
                low = middle + 1
            end
        end
        if low <= #tasks then
            counts[low][period] = (counts[low][period] or 0) + 1
        end
    end
    local sums, all = {}, {}
    for place = 1, #tasks do
        local last, ahead = 0, {}
        for period = 1, DELAYED_PERIODS do
            sums[period] = (sums[period] or 0) + (counts[place][period] or 0)
            last = sums[period] > 0 and period or last
        end
        for period = 1, last do
            ahead[period] = (ahead[period - 1] or 0) + sums[period]
        end
        all[place] = ahead
    end
    return all
end

-- Those of these tasks that wait, once each, in the order of the queue.
local function waiting_tasks(c, tube, ids)
    local tasks, known = {}, {}
    for _, id in ipairs(ids) do
        local task = S.task:get({ tube.number, id })
        local waits = task and (task[STATE] == READY or task[STATE] == DELAYED) and not delivery_of(tube, id)
        local is_delayed = waits and task[STATE] == DELAYED and task[FLAG] ~= GATED
        if waits and not known[task[ID]] and (is_delayed or task[EXPIRES] > c.now) then
            known[task[ID]], tasks[#tasks + 1] = true, task
        end
    end
    table.sort(tasks, function(a, b) return is_before(a[PRI], a[ID], b[PRI], b[ID]) end)
    return tasks
end

-- Whether a tube was dropped during a yield; another one may have its number then.
local function is_dropped(tube, shared)
    local row = shared.has_yielded and S.tube:get(tube.number)
    return shared.has_yielded and not (row and row[2] == tube.name)
end

-- The position of a task; nil if the tube was dropped.
local function position(c, tube, shared, task, delayed)
    local pri, id, is_gated = task[PRI], task[ID], task[FLAG] == GATED
    local count = tube.o.subqueues and ready_in_subqueues or ready_before
    local ahead, is_exact = count(c, tube, shared, pri, id)
    if is_dropped(tube, shared) then
        return nil
    end
    local gone, own_gone = expired_before(shared.expired, pri, id, given(task[SUBQUEUE]))
    ahead = ahead - gone
    is_exact = is_exact and shared.has_all_expired
    local due = task[STATE] == DELAYED and not is_gated and task[DUE] or NULL
    local subqueue, gate = NULL, is_gated and positions.gate_ahead(c, tube, id, GATE_LOOKED_MAX) or NULL
    if tube.o.subqueues then
        local own, is_busy, counts_all = subqueue_position(c, tube, shared, task, ahead)
        subqueue, is_exact = { own - own_gone, is_busy }, is_exact and counts_all
    end
    if gate ~= nil then
        is_exact = is_exact and gate < GATE_LOOKED_MAX
    end
    return { id, pri, math.max(ahead, 0), is_exact, due, delayed, subqueue, gate, NULL }
end

verbs[positions.NUMBER] = function(c, command)
    local tube, ids = open_tube(c, command[2]), command[3]
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    local tasks, found, shown = waiting_tasks(c, tube, ids), {}, {}
    local delayed = delayed_before(c, tube, tasks)
    local shared = { size = math.max(#tasks, 1), ahead = 0, is_exact = true }
    shared.expired, shared.has_all_expired = expired_ready(c, tube)
    for place, task in ipairs(tasks) do
        found[task[ID]] = position(c, tube, shared, task, delayed[place])
        if not found[task[ID]] then
            return refuse('tube_not_found', command[2])
        end
    end
    for _, id in ipairs(ids) do
        shown[#shown + 1] = found[id]
    end
    return { REPLY.positions, shown }
end
