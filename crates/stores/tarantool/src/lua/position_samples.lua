-- Estimates how many ready tasks are before a place (priority and id) from samples: Tarantool counts rows one by one.
--
-- A sample is the number of rows in a window of ids, whose length is chosen so that it has about so many, and hardly ever many more;
-- of a window with more than these only the first ones count, with the length that they have. Windows of a fixed length are unbiased also
-- where ids have large holes, because tasks of other priorities were put between. The windows are at irregular
-- places, so that holes in a regular pattern are not always missed.
--
-- Each window differs from the average of its neighbours by their errors, which gives the standard error of the sum.

local bit = require('bit')

-- How many rows a window has, and how many are read at once: of the ready tasks of a priority, and of all tasks.
local ROWS, ROWS_READ = 14, 22
local ROWS_BY_ID, ROWS_READ_BY_ID = 40, 60
-- Most rows of a window.
local ROWS_MAX = 120
-- In how many places the distance of ids is measured.
local PROBES = 16
-- Up to how many tasks of a priority are counted of which no window has any: this costs as much as a few windows.
local MISSED_COUNTED_MAX = {{AHEAD_COUNTED_MAX}}
-- With more priorities than this, tasks are sampled by id.
local PRIORITIES_MAX = 64

-- How many rows Tarantool skips while Lua reads a window, of a priority or by id, and how many until other fibers run: about a millisecond.
positions.WINDOW_COST, positions.WINDOW_COST_BY_ID, positions.STEP_COST = 500, 1500, 19000

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

-- The distance of ids, on average and where they are densest, from so many places; nil if there are few. A function returns the id of
-- the row so many rows behind a place. The first row may be far from all others, or all others be at its side, so its place counts
-- for the average only if no other has rows.
local function gap_of(first, ending, probes, rows, id_behind)
    local sum, found, shift = 0, 0, shifts()
    local at_first = id_behind(first, rows - 1)
    if not at_first or at_first >= ending then
        return nil
    end
    local smallest = at_first - first
    for place = 0, probes - 1 do
        local from = math.floor(first + (ending - first) * (place + shift()) / probes)
        local id = id_behind(from, rows - 1)
        if id and id < ending then
            sum, found, smallest = sum + (id - from), found + 1, math.min(smallest, id - from)
        end
    end
    return (found > 0 and sum / found or at_first - first) / (rows - 1), smallest / (rows - 1)
end

-- Lets other fibers run after so many rows, except in a transaction, which would be aborted.
function positions.work(shared, rows)
    shared.work = (shared.work or 0) + rows
    if shared.work >= positions.STEP_COST and not box.is_in_txn() then
        shared.work, shared.has_yielded = 0, true
        fiber.sleep(0)
    end
end

-- Calls a function for windows from an id to another, with the bounds of each, the length that it stands for and its number.
local function each_window(first, ending, count, size, shift, visit)
    local share = (ending - first) / count
    size = math.min(size, share)
    for place = 0, count - 1 do
        local start = first + share * place + (share - size) * shift()
        visit(math.ceil(start), math.ceil(start + size), share, place + 1)
    end
end

-- The sum of such numbers from neighbouring windows, and its standard error squared.
local function sum_of(numbers)
    local sum, squares, size = 0, 0, #numbers
    for place = 1, size do
        sum = sum + numbers[place]
        if place > 1 and place < size then
            squares = squares + (numbers[place - 1] + numbers[place + 1] - 2 * numbers[place]) ^ 2
        end
    end
    -- The first and the last have one neighbour.
    return sum, size > 2 and squares / 6 * size / (size - 2) or 0
end

-- The length of a window with so many rows, at most `most`, of which this is the last id.
local function length_of(from, to, rows, most, last)
    return rows < most and math.max(to - from, 1) or last - from + 1
end

-- The priorities of ready tasks before a place, with the range of their ids; nil if there are too many.
function positions.priorities_before(of, pri, id)
    local parts, head = {}, S.ready:select({ of }, { limit = 1 })[1]
    while head and head[1] == of and positions.is_before(head[2], head[3], pri, id) do
        local own, first = head[2], tonumber(head[3])
        if #parts == PRIORITIES_MAX then
            return nil
        end
        local ending = own == pri and tonumber(id) or tonumber(S.ready:select({ of, own }, { iterator = 'REQ', limit = 1 })[1][3]) + 1
        parts[#parts + 1] = { pri = own, first = first, ending = ending }
        -- A key without an id goes on to the next priority.
        head = S.ready:select({ of, own }, { iterator = 'GT', limit = 1 })[1]
    end
    return parts
end

-- How many ready tasks of a priority are in a window, and the last id. Mostly all are read at once; Lua reads rows slowly, and skips
-- them only if they are many.
local function ready_in_window(of, pri, from, to)
    local rows, found = S.ready:select({ of, pri, from }, { iterator = 'GE', limit = ROWS_READ }), 0
    for place = #rows, 1, -1 do
        local row = rows[place]
        if row[3] < to and row[2] == pri and row[1] == of then
            found = place
            break
        end
    end
    if found < ROWS_READ then
        return found, nil
    end
    local all, last = positions.count_rows(S.ready, { of, pri, from }, ROWS_MAX, function(row)
        return row[1] == of and row[2] == pri and row[3] < to and { of, pri, row[3] }
    end)
    return all, tonumber(last[3])
end

-- Measures how far the ids of these priorities are apart, and which share of the windows each gets. A priority with more tasks or more ids
-- gets more.
function positions.measure(of, parts)
    local all, length, probes = 0, 0, math.max(math.floor(PROBES / #parts), 4)
    for _, part in ipairs(parts) do
        part.gap, part.smallest = gap_of(part.first, part.ending, probes, ROWS, function(from, offset)
            local row = S.ready:select({ of, part.pri, from }, { iterator = 'GE', offset = offset, limit = 1 })[1]
            return row and row[1] == of and row[2] == part.pri and tonumber(row[3]) or nil
        end)
        part.length = part.ending - part.first
        part.size = part.length / (part.gap or part.length)
        all, length = all + part.size, length + part.length
    end
    for _, part in ipairs(parts) do
        part.windows = (part.size / all + part.length / length) / 2
    end
end

-- The number of tasks of a priority of which no window has any, and its standard error squared. Few are counted; if there are more, they are in
-- one place between the windows, and at most as many as the length that a window stands for has where ids are densest.
local function missed(of, shared, part, share)
    local count = positions.ready_between(of, { of, part.pri, part.first }, part.pri, part.ending, MISSED_COUNTED_MAX)
    positions.work(shared, count)
    return count, count < MISSED_COUNTED_MAX and 0 or (share / part.smallest) ^ 2
end

-- About how many tasks of these priorities are ready, from so many windows, and the standard error of that.
function positions.sampled_ready(of, shared, parts, windows)
    -- Windows of different priorities are at different places, so that their errors are independent.
    local ahead, squares, shift = 0, 0, shifts()
    for _, part in ipairs(parts) do
        local count = part.gap and 2 + math.ceil(windows * part.windows) or 1
        local size, numbers = part.ending, {}
        if part.gap then
            -- The more the distances differ, the more rows a window needs.
            local rows = ROWS * math.min(math.max(part.gap / part.smallest / 2, 1), 3)
            size = math.min(rows * part.gap, 0.9 * ROWS_MAX * part.smallest)
        end
        each_window(part.first, part.ending, count, size, shift, function(from, to, share, place)
            local found, last = ready_in_window(of, part.pri, from, to)
            numbers[place] = share * found / length_of(from, to, found, ROWS_MAX, last)
            positions.work(shared, positions.WINDOW_COST)
        end)
        local sum, part_squares = sum_of(numbers)
        if sum == 0 then
            sum, part_squares = missed(of, shared, part, part.length / count)
        end
        ahead, squares = ahead + sum, squares + part_squares
    end
    return ahead, math.sqrt(squares)
end

-- Adds the ready tasks of a window of all tasks by id to a sample. An expired one only counts as ready.
local function add_window(c, of, found, from, to, place)
    local taken = S.taken:select({ of, from }, { iterator = 'GE', limit = 1 })[1]
    local may_be_taken = taken and taken[D_TUBE] == of and taken[D_ID] < to
    local rows, size, kept, ready = S.task:select({ of, from }, { iterator = 'GE', limit = ROWS_READ_BY_ID }), 0, #found.ids, 0
    for _, row in ipairs(rows) do
        if row[TUBE] ~= of or row[ID] >= to then
            break
        end
        size = size + 1
        if row[STATE] == READY and not (may_be_taken and S.taken:get({ of, row[ID] })) then
            ready = ready + 1
            if row[EXPIRES] > c.now then
                found.ids[#found.ids + 1], found.pris[#found.pris + 1] = row[ID], row[PRI]
            end
        end
    end
    local weight = size > 0 and 1 / length_of(from, to, size, ROWS_READ_BY_ID, tonumber(rows[size][ID])) or 0
    for kept_place = kept + 1, #found.ids do
        found.weights[kept_place], found.windows[kept_place] = weight, place
    end
    found.ready[place] = ready * weight
end

-- Ready tasks from windows of all tasks by id, each with its window and the share of it that it is.
function positions.sample_by_id(c, of, shared, windows)
    local found = { pris = {}, ids = {}, weights = {}, windows = {}, ready = {} }
    local head, tail = S.task:select({ of }, { limit = 1 })[1], S.task:select({ of }, { iterator = 'REQ', limit = 1 })[1]
    if not head then
        return found
    end
    local first, last = tonumber(head[ID]), tonumber(tail[ID])
    local gap = gap_of(first, last + 1, PROBES, ROWS, function(from, offset)
        local row = S.task:select({ of, from }, { iterator = 'GE', offset = offset, limit = 1 })[1]
        return row and row[TUBE] == of and tonumber(row[ID]) or nil
    end)
    each_window(first, last + 1, windows, ROWS_BY_ID * (gap or 1), shifts(), function(from, to, _, place)
        add_window(c, of, found, from, to, place)
        positions.work(shared, positions.WINDOW_COST_BY_ID)
    end)
    return found
end

-- About how many of `all` ready tasks are before a place, from a sample by id, and the standard error of that. The share of the ready tasks is
-- estimated, so that holes between ids do not matter.
function positions.share_in_sample(found, all, pri, id)
    local before, rests = {}, {}
    for place = 1, #found.ready do
        before[place] = 0
    end
    for place = 1, #found.ids do
        if positions.is_before(found.pris[place], found.ids[place], pri, id) then
            local window = found.windows[place]
            before[window] = before[window] + found.weights[place]
        end
    end
    local ready, ahead = sum_of(found.ready), sum_of(before)
    if ready == 0 then
        return 0, 0
    end
    for place = 1, #before do
        rests[place] = before[place] - ahead / ready * found.ready[place]
    end
    local _, squares = sum_of(rests)
    return all * ahead / ready, all / ready * math.sqrt(squares)
end

-- All ready tasks of a tube with few in its sub-queues, as in a sample.
function positions.all_in_subqueues(of)
    local found = { pris = {}, ids = {}, weights = {} }
    for place, row in ipairs(S.line:select({ of })) do
        found.pris[place], found.ids[place], found.weights[place] = row[3], row[4], 1
    end
    return found
end

function positions.ahead_in_sample(found, pri, id)
    local ahead = 0
    for place = 1, #found.ids do
        if positions.is_before(found.pris[place], found.ids[place], pri, id) then
            ahead = ahead + found.weights[place]
        end
    end
    return ahead
end

-- How many ready tasks follow each other from a key on before a place; counts up to `most`.
function positions.ready_between(of, key, pri, id, most)
    return (positions.count_rows(S.ready, key, most, function(row)
        return row[1] == of and positions.is_before(row[2], row[3], pri, id) and { of, row[2], row[3] }
    end))
end
