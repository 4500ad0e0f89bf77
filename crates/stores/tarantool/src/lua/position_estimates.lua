-- Estimates how many ready tasks are before a place from samples. If the standard error of these is too large, as where long batches of several
-- priorities alternate and each window is within one of them, the tasks before the place or those behind it are counted, or more windows are read.
-- Positions are not read in a transaction, so long work yields.

-- How many windows are read at first and at most: of the ready tasks of each priority, and of all tasks.
local WINDOWS, WINDOWS_MAX, WINDOWS_BY_ID, WINDOWS_BY_ID_MAX = 48, 4000, 64, 960
-- How many are many: the standard error from fewer is uncertain itself, and has to be less.
local WINDOWS_MANY, ERROR_OF_FEW_MAX = 128, 0.01
-- The largest standard error of an estimate, as a share of it, and that for which the number of windows is chosen.
local ERROR_MAX, ERROR_WANTED = 0.017, 0.015
-- With many priorities tasks are sampled by id, unless so few are ahead.
local SKIPPED_MAX = 10 * {{AHEAD_COUNTED_MAX}}

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

-- How many ready tasks are before a place, counted from the place before, or from the end if fewer are behind; also whether expired ones are
-- left out, and whether it is exact.
local function counted(tube, shared, ahead, pri, id)
    local of, all = tube.number, tube.n.takeable
    if ahead - shared.ahead <= all - ahead then
        return shared.ahead + count_all(of, shared, shared.last or { of }, function(row)
            return positions.is_before(row[2], row[3], pri, id)
        end), shared.is_unexpired, shared.is_exact and not shared.has_yielded
    end
    local behind = count_all(of, shared, { of, pri, id }, function() return true end)
    return all - behind, false, not shared.has_yielded
end

-- How many times as many windows are needed for an estimate with this standard error.
local function times_more(ahead, err)
    return math.max((err / (ERROR_WANTED * math.max(ahead, 1))) ^ 2, 1.2)
end

-- The same as `counted`, estimated from a sample by id, which all places share.
local function estimated_by_id(c, tube, shared, pri, id)
    local of, all = tube.number, tube.o.subqueues and tube.n.ready or tube.n.takeable
    -- The fewer tasks are ahead, the fewer of the samples are.
    local few = not tube.o.subqueues and positions.ready_between(of, shared.last or { of }, pri, id, SKIPPED_MAX)
    if few and few < SKIPPED_MAX then
        return shared.ahead + few, shared.is_unexpired, shared.is_exact
    end
    while true do
        local windows = shared.windows or WINDOWS_BY_ID
        shared.by_id = shared.by_id or positions.sample_by_id(c, of, shared, windows)
        local ahead, err = positions.share_in_sample(shared.by_id, all, pri, id)
        -- Without tasks ahead in any window the error is unknown.
        local more = ahead > 0 and times_more(ahead, err) or 4
        if ahead > 0 and err <= ERROR_MAX * ahead or windows >= WINDOWS_BY_ID_MAX then
            return ahead, true, false
        elseif not tube.o.subqueues and math.min(ahead - shared.ahead, all - ahead) <= windows * more * positions.WINDOW_COST_BY_ID then
            return counted(tube, shared, ahead, pri, id)
        end
        shared.by_id, shared.windows = nil, math.min(math.ceil(windows * math.min(more, 4)), WINDOWS_BY_ID_MAX)
    end
end

-- The same as `counted`, estimated from windows of each of these priorities.
local function estimated_by_priority(tube, shared, parts, pri, id)
    local windows, all = math.min(math.max(WINDOWS, 6 * #parts), 256), tube.n.takeable
    positions.measure(tube.number, parts)
    while true do
        local ahead, err = positions.sampled_ready(tube.number, shared, parts, windows)
        ahead = math.min(ahead, all)
        if err <= (windows < WINDOWS_MANY and ERROR_OF_FEW_MAX or ERROR_MAX) * ahead or windows >= WINDOWS_MAX then
            return ahead, false, false
        end
        -- Counting is compared with as many windows as would do, also if these are more than may be read: the answer would be worse.
        windows = math.max(windows * times_more(ahead, err), WINDOWS_MANY)
        if math.min(ahead - shared.ahead, all - ahead) <= windows * positions.WINDOW_COST then
            return counted(tube, shared, ahead, pri, id)
        end
        windows = math.min(math.ceil(windows), WINDOWS_MAX)
    end
end

-- About how many ready tasks are before a place, whether expired ones are left out, and whether it is exact. `shared` is what was read for this
-- command: the last place, how many are before it, and whether that is exact.
function positions.estimated(c, tube, shared, pri, id)
    local of, ahead, is_unexpired, is_exact = tube.number, nil, nil, nil
    local parts = not tube.o.subqueues and positions.priorities_before(of, pri, id)
    if parts then
        ahead, is_unexpired, is_exact = estimated_by_priority(tube, shared, parts, pri, id)
    else
        ahead, is_unexpired, is_exact = estimated_by_id(c, tube, shared, pri, id)
    end
    return math.floor(ahead + 0.5), is_unexpired, is_exact
end
