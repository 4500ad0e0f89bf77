-- Estimates how many ready tasks are before a place from samples, as long as the bound of the error of these is below 5 %. Otherwise more windows
-- are read, or the tasks before the place or those behind it are counted, whichever costs less. Positions are not read in a transaction, so long
-- work yields.

-- How many windows are read at first: in ranges of ids of few priorities, and of all tasks of sub-queues.
local WINDOWS, SUBQUEUE_WINDOWS = 64, 256

-- How many rows of the order of ready tasks follow each other from a key on, while `is_inside`; counts all, with yields.
local function count_all(of, shared, key, is_inside)
    local count = 0
    while true do
        local more, last = positions.count_rows(S.ready, key, positions.STEP_COST, function(row)
            return row[1] == of and is_inside(row) and { of, row[2], row[3] }
        end)
        count = count + more
        if more < positions.STEP_COST then
            return count
        end
        key = { of, last[2], last[3] + 1 }
        positions.work(shared, more)
    end
end

-- How many ready tasks are before a place, counted from the place before, or from the end if fewer are behind, and whether it is exact.
local function counted(tube, shared, ahead, pri, id)
    local of, all = tube.number, tube.n.takeable
    if ahead - shared.ahead <= all - ahead then
        return shared.ahead + count_all(of, shared, shared.last or { of }, function(row)
            return positions.is_before(row[2], row[3], pri, id)
        end), shared.is_exact and not shared.has_yielded
    end
    return all - count_all(of, shared, { of, pri, id }, function() return true end), not shared.has_yielded
end

-- How many windows an estimate needs that may be wrong by 5 % of a number. The bound of the error has two parts, of which one rarely is large
-- when the other is. One is three standard errors. The other is for what no window has hit: the tasks of up to four parts between windows,
-- however they are distributed (with more, all windows miss them in less than e^-4 of all cases). If the bound is at most a 21st of the
-- number, these are enough; otherwise a little more than necessary, because the standard error was estimated, too.
local function windows_needed(windows, err, length, number)
    -- Both parts as shares of the number, squared, with one window each: the first falls with the number of windows, the second with its square.
    number = math.max(number, 1)
    local noise, unseen = (3 * err / number) ^ 2 * windows, (4 * length / number) ^ 2
    if noise / windows + unseen / windows ^ 2 <= 1 / 21 ^ 2 then
        return windows
    end
    return math.ceil(math.max(1.5 * windows, 256 * noise + math.sqrt((256 * noise) ^ 2 + 512 * unseen)))
end

-- A sample of the ready tasks of all sub-queues by id with so many windows, or if that costs more, one by rank, which is always sufficient.
local function sample_of_subqueues(c, tube, shared, windows)
    if windows * positions.WINDOW_COST > tube.n.ready then
        return { tasks = positions.sample_by_rank(tube, shared), windows = math.huge }
    end
    local ranges = positions.all_ids(tube.number)
    local length = ranges[1].ending - ranges[1].first
    return { tasks = positions.sample(c, tube, shared, ranges, length, windows), windows = windows, length = length }
end

-- About how many ready tasks of all sub-queues are before a place, within 5 % of half of them. All places share the sample.
local function estimated_in_subqueues(c, tube, shared, pri, id)
    local needed = SUBQUEUE_WINDOWS
    while true do
        local sample = shared.sample or sample_of_subqueues(c, tube, shared, needed)
        local ahead, err = positions.in_sample(sample.tasks, pri, id, false)
        needed = sample.windows < math.huge and windows_needed(sample.windows, err, sample.length, tube.n.ready / 2) or 0
        shared.sample = needed <= sample.windows and sample or nil
        if shared.sample then
            return math.floor(ahead + 0.5)
        end
    end
end

-- About how many ready tasks are before a place, and whether that is exact. `shared` is what was read for this command: the last place, how many are
-- before it, and whether that is exact.
function positions.estimated(c, tube, shared, pri, id)
    if tube.o.subqueues then
        return estimated_in_subqueues(c, tube, shared, pri, id), false
    end
    local ranges, length, is_behind = positions.ranges_before(tube.number, pri, id)
    if is_behind and length <= {{AHEAD_COUNTED_MAX}} then
        -- Few ids are behind the place, as behind that of a task that was just put.
        local all = tube.n.takeable
        return all - count_all(tube.number, shared, { tube.number, pri, id }, function() return true end), not shared.has_yielded
    end
    local windows = WINDOWS
    while true do
        local tasks, err = positions.in_sample(positions.sample(c, tube, shared, ranges, length, windows), pri, id, is_behind)
        local all = tube.n.takeable
        local ahead = math.min(math.max(is_behind and all - tasks or tasks, shared.ahead, 1), all)
        local needed = windows_needed(windows, err, length, ahead)
        if needed <= windows then
            return math.floor(ahead + 0.5), false
        elseif math.min(ahead - shared.ahead, all - ahead) <= needed * positions.WINDOW_COST then
            return counted(tube, shared, ahead, pri, id)
        end
        windows = needed
    end
end
