-- Corrects what Tarantool has of a server whose calls were lost: its sessions, and deliveries whose replies did not arrive.

-- Ranges of lease numbers in order, adjacent ones joined.
local function joined(ranges)
    table.sort(ranges, function(a, b) return a[1] < b[1] end)
    local all = {}
    for _, range in ipairs(ranges) do
        local last = all[#all]
        if last and range[1] <= last[2] + 1 then
            last[2] = math.max(last[2], range[2])
        else
            all[#all + 1] = { range[1], range[2] }
        end
    end
    return all
end

-- Whether a number is in one of these ranges.
local function is_within(ranges, of)
    local low, high = 1, #ranges
    while low <= high do
        local middle = math.floor((low + high) / 2)
        if of < ranges[middle][1] then
            high = middle - 1
        elseif of > ranges[middle][2] then
            low = middle + 1
        else
            return true
        end
    end
    return false
end

-- Deliveries whose replies were lost, by the numbers of their tubes. Each tube is read once, and all tubes if one was renamed: lease numbers
-- are unique across tubes.
local function find_unacknowledged(c, lost)
    local wanted, all_tubes = {}, false
    local ranges = {}
    for place, row in ipairs(lost) do
        local tube = open_tube(c, row[1])
        if tube then
            wanted[tube.number] = true
        else
            all_tubes = true
        end
        ranges[place] = { tonumber(row[2]), tonumber(row[3]) }
    end
    if all_tubes then
        for _, tube in S.tube:pairs() do
            wanted[tube[1]] = true
        end
    end
    ranges = joined(ranges)
    local found = {}
    for of in pairs(wanted) do
        local all = {}
        for _, delivery in S.taken:pairs({ of }) do
            if is_within(ranges, tonumber(delivery[D_LEASE])) then
                all[#all + 1] = delivery
            end
        end
        found[of] = #all > 0 and all or nil
    end
    return found
end

local function undo_unacknowledged(c, lost)
    for of, all in pairs(find_unacknowledged(c, lost)) do
        local tube = open_number(c, of)
        regate(c, tube, give_back_all(c, tube, all, false))
    end
end

local function failures(c)
    local failed = {}
    for of, count in pairs(c.failed) do
        failed[#failed + 1] = { open_number(c, of).name, count }
    end
    return failed
end

-- Replaces the sessions that are connected at a server, undoes deliveries whose replies were lost, and refuses calls up to this one from now
-- on. Answers the last refused call, and tubes in which deliveries failed because their sessions had ended.
function api.resync(server, now, last, sessions, lost)
    return atomically(function()
        local row = S.server:get(server)
        if row and row[3] >= last then
            -- This call was delayed, and a later one is done already.
            return { row[3], {} }
        end
        local c, kept = new_context(server, moment(now)), {}
        S.server:replace({ server, micros(), last })
        note_contact(server)
        for _, row in ipairs(sessions) do
            kept[row[1]] = true
        end
        disconnect_sessions(c, server, kept)
        for _, row in ipairs(sessions) do
            if not is_alive(c, row[1]) then
                -- It ended meanwhile, and continues without its tasks.
                end_session(c, row[1])
            end
            connect(c, server, row[1], row[2])
        end
        undo_unacknowledged(c, lost)
        flush_all(c)
        return { last, failures(c) }
    end)
end
