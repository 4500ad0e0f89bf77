-- Reads samples of tasks by id, and counts how many of these are before a place (priority and id): Tarantool counts rows one by one.
--
-- A sample has the ready tasks in windows of ids. The windows have a fixed length, because the density behind a random id is biased where tasks
-- of other priorities leave holes. They are at irregular places, so that holes in a regular pattern are not always missed.

local bit = require('bit')

-- How many rows a window has, if all tasks of the tube are in the ranges of the sample, and how many are read at once.
local ROWS, ROWS_READ = 16, 24
-- How many tasks of sub-queues are read at regular ranks: half of the tasks differ by at most 5 %, with three standard errors.
local RANKS = 4096
-- With more priorities than this, tasks of all ids are sampled.
local PRIORITIES_MAX = 64

-- How many rows Tarantool skips while Lua reads a window, and how many until other fibers run: about a millisecond.
positions.WINDOW_COST, positions.STEP_COST = 700, 19000

-- Where in its part each sample is, from 0 to 1: irregular, but always the same.
local function shifts()
    local state = 2463534242
    return function()
        state = bit.bxor(state, bit.lshift(state, 13))
        state = bit.bxor(state, bit.rshift(state, 17))
        state = bit.bxor(state, bit.lshift(state, 5))
        return bit.band(state, 65535) / 65536
    end
end

-- Whether a place is before another one.
function positions.is_before(pri, id, other_pri, other_id)
    return pri < other_pri or pri == other_pri and id < other_id
end

-- About how many ready tasks are before a place, and whether that is exact, if they all have one priority and at most one in 25 of the ids
-- between the first and the last has none: the number of all ready tasks then limits how many can be before the place, and the answer is wrong
-- by at most 2 %. Otherwise nil, and for few.
function positions.bounded(tube, pri, id)
    local of, all = tube.number, tube.n.takeable
    local first = S.ready:select({ of }, { limit = 1 })[1]
    local last = S.ready:select({ of }, { iterator = 'REQ', limit = 1 })[1]
    if not first or first[2] ~= last[2] or pri < first[2] then
        return nil
    end
    local begin, ending = tonumber(first[3]), tonumber(last[3]) + 1
    local place = pri == first[2] and math.min(tonumber(id), ending) or ending
    local least, most = all - (ending - place), math.min(place - begin, all)
    if least >= {{AHEAD_COUNTED_MAX}} and most - least <= least / 25 then
        return math.floor((least + most) / 2), least == most
    end
end

-- Lets other fibers run after so many rows, except in a transaction, which would be aborted.
function positions.work(shared, rows)
    shared.work = (shared.work or 0) + rows
    if shared.work >= positions.STEP_COST and not box.is_in_txn() then
        shared.work, shared.has_yielded = 0, true
        fiber.sleep(0)
    end
end

-- The ids from the first to the last task of a tube.
function positions.all_ids(of)
    local first, last = S.task:select({ of }, { limit = 1 })[1], S.task:select({ of }, { iterator = 'REQ', limit = 1 })[1]
    -- There may be none any more after a yield.
    return { { first = first and tonumber(first[ID]) or 0, ending = last and tonumber(last[ID]) + 1 or 1 } }
end

-- The ranges with overlapping ones joined, and how many ids these are.
local function joined(ranges)
    table.sort(ranges, function(a, b) return a.first < b.first end)
    local found, length = {}, 0
    for _, range in ipairs(ranges) do
        local last = found[#found]
        if last and range.first <= last.ending then
            last.ending = math.max(last.ending, range.ending)
        else
            found[#found + 1] = range
        end
    end
    for _, range in ipairs(found) do
        length = length + range.ending - range.first
    end
    return found, length
end

-- Ranges of ids that contain all ready tasks before a place, and how many ids these are: for each priority from its first task to its last one. If
-- the place is in the last priority, those behind it may have fewer ids; then the answer is true and the range of these.
function positions.ranges_before(of, pri, id)
    local ranges, head = {}, S.ready:select({ of }, { limit = 1 })[1]
    while head and head[1] == of and positions.is_before(head[2], head[3], pri, id) do
        local own, last = head[2], nil
        if own == pri then
            last = S.ready:select({ of, pri, id }, { iterator = 'LT', limit = 1 })[1]
        else
            last = S.ready:select({ of, own }, { iterator = 'REQ', limit = 1 })[1]
        end
        if #ranges == PRIORITIES_MAX then
            ranges = positions.all_ids(of)
            break
        end
        ranges[#ranges + 1] = { first = tonumber(head[3]), ending = tonumber(last[3]) + 1 }
        -- A key without an id goes on to the next priority.
        head = S.ready:select({ of, own }, { iterator = 'GT', limit = 1 })[1]
    end
    local found, length = joined(ranges)
    local last, first = S.ready:select({ of }, { iterator = 'REQ', limit = 1 })[1], tonumber(id)
    local ending = last and last[2] == pri and tonumber(last[3]) + 1
    if ending and ending > first and ending - first < length then
        return { { first = first, ending = ending } }, ending - first, true
    end
    return found, length, false
end

-- Whether a ready task is in the order of its tube. A take may have removed it if it is expired.
function positions.is_in_order(tube, task)
    local of, pri, id = tube.number, task[PRI], task[ID]
    if tube.o.subqueues then
        return S.line:get({ of, task[SUBQUEUE], pri, id }) ~= nil
    end
    return S.ready:get({ of, pri, id }) ~= nil
end

-- Calls a function for the tasks of a window of ids. It may be empty, or have more than others; other fibers run meanwhile if it has many.
local function each_task(of, shared, from, to, visit)
    while from < to do
        local rows = S.task:select({ of, from }, { iterator = 'GE', limit = math.min(to - from, ROWS_READ) })
        local is_last = #rows < ROWS_READ
        for _, row in ipairs(rows) do
            if row[TUBE] ~= of or row[ID] >= to then
                is_last = true
                break
            end
            visit(row)
        end
        from = is_last and to or tonumber(rows[ROWS_READ][ID]) + 1
        positions.work(shared, positions.WINDOW_COST)
    end
end

-- Adds the ready tasks of a window of ids to a sample.
local function add_window(c, tube, shared, found, window, from, to)
    local of = tube.number
    local may_be_taken = positions.first_taken(of, from) < to
    each_task(of, shared, from, to, function(row)
        if row[STATE] == READY and not ((may_be_taken or shared.has_yielded) and S.taken:get({ of, row[ID] }))
            and (row[EXPIRES] > c.now or positions.is_in_order(tube, row)) then
            local place = #found.ids + 1
            found.ids[place], found.pris[place], found.windows[place] = row[ID], row[PRI], window
        end
    end)
end

-- The ready tasks in so many windows of these ranges of ids, each with its window, and for each window how many tasks one of it stands for. The
-- windows of a range begin before it, so that each of its ids is in as many windows on average.
function positions.sample(c, tube, shared, ranges, length, windows)
    local found, shift, n = { pris = {}, ids = {}, windows = {}, weights = {} }, shifts(), tube.n
    local size = math.ceil(ROWS * math.max(length / (n.ready + n.taken + n.delayed + n.buried), 1))
    for _, range in ipairs(ranges) do
        local count = math.ceil((range.ending - range.first) / length * windows)
        local share = (range.ending - range.first + size - 1) / count
        for place = 0, count - 1 do
            local from = range.first - size + 1 + math.floor(share * (place + shift()))
            found.weights[#found.weights + 1] = share / size
            add_window(c, tube, shared, found, #found.weights, math.max(from, range.first), math.min(from + size, range.ending))
        end
    end
    return found
end

-- About how many ready tasks are before a place, or not, from a sample, and the standard error of that. The difference of neighbouring windows has
-- the errors of both.
function positions.in_sample(found, pri, id, is_behind)
    local numbers, sum, squares = {}, 0, 0
    for window = 1, #found.weights do
        numbers[window] = 0
    end
    for place = 1, #found.ids do
        if positions.is_before(found.pris[place], found.ids[place], pri, id) ~= is_behind then
            local window = found.windows[place]
            numbers[window] = numbers[window] + found.weights[window]
        end
    end
    for window = 1, #numbers do
        sum = sum + numbers[window]
        squares = squares + (window > 1 and (numbers[window] - numbers[window - 1]) ^ 2 or 0)
    end
    return sum, math.sqrt(squares / 2)
end

-- Adds a task of a sub-queue to a sample, and answers its key.
local function add_ranked(found, row, weight)
    local place = #found.ids + 1
    found.pris[place], found.ids[place], found.windows[place], found.weights[place] = row[3], row[4], place, weight
    return { row[1], row[2], row[3], row[4] }
end

-- All ready tasks of a tube with few in its sub-queues, as in a sample.
function positions.all_in_subqueues(of)
    local found = { pris = {}, ids = {}, windows = {}, weights = {} }
    for _, row in ipairs(S.line:select({ of })) do
        add_ranked(found, row, 1)
    end
    return found
end

-- The ready tasks of all sub-queues at some ranks, as in a sample. The others are skipped.
function positions.sample_by_rank(tube, shared)
    local of, found, shift = tube.number, { pris = {}, ids = {}, windows = {}, weights = {} }, shifts()
    local count = math.max(math.min(RANKS, tube.n.ready), 1)
    local key, iterator, last, step = { of }, 'GE', -1, tube.n.ready / count
    for place = 0, count - 1 do
        local rank = math.max(math.floor(step * (place + shift())), last + 1)
        local row = S.line:select(key, { iterator = iterator, offset = rank - last - 1, limit = 1 })[1]
        if not row or row[1] ~= of then
            break
        end
        key, iterator = add_ranked(found, row, step), 'GT'
        positions.work(shared, rank - last + positions.WINDOW_COST / ROWS)
        last = rank
    end
    return found
end

-- How many ready tasks follow each other from a key on before a place; counts up to `most`.
function positions.ready_between(of, key, pri, id, most)
    return (positions.count_rows(S.ready, key, most, function(row)
        return row[1] == of and positions.is_before(row[2], row[3], pri, id) and { of, row[2], row[3] }
    end))
end
