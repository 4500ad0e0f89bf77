-- The servers that share these tubes. Each says every while that it lives; the sessions of one that does not are ended. When all
-- were gone, what the last ones left behind is put in order.

-- What servers hear of each other: notices of what was done, and when each was last heard. All versions of these procedures share it.
local news = rawget(_G, NEWS)
if not news then
    news = { number = 0, cond = fiber.cond(), notices = {}, heard = {} }
    rawset(_G, NEWS, news)
end
-- The same by a clock that nobody sets: when each server was last heard, since when this instance can be written to for each prefix.
news.last, news.since = news.last or {}, news.since or {}
-- The last two heartbeats of each server, by that clock.
news.beats = news.beats or {}

-- An instance that does not run for so long, in microseconds, hears nobody; it notes every while that it runs.
local STANDSTILL, PULSE_SECONDS = 1000000, 0.25

local function steady()
    return tonumber(clock.monotonic64() / 1000)
end

-- Notes that this instance runs, and since when without having stood still.
local function note_pulse()
    local at = steady()
    if at - news.pulse > STANDSTILL then
        news.awake = at
    end
    news.pulse = at
end

if not news.pulse then
    news.pulse, news.awake = steady(), steady()
    fiber.create(function()
        fiber.name('taskyard')
        while true do
            fiber.sleep(PULSE_SECONDS)
            note_pulse()
        end
    end)
end

-- Who asks lives. The clock of the day is for servers of older versions.
local function hear(server)
    news.heard[server], news.last[server] = micros(), steady()
end

local function forget_server(server)
    S.server:delete(server)
    news.heard[server], news.last[server], news.beats[server] = nil, nil, nil
end

-- Notes a heartbeat. Answers the one before the last, if this instance has heard so many.
local function note_beat(server)
    local before = news.beats[server] or {}
    news.beats[server] = { steady(), before[1] }
    return before[2]
end

-- All that is kept of one call.
local function new_context(server, now, lease)
    return { now = now or micros(), server = server, lease = lease, by_name = {}, by_number = {}, settled = {}, unlimited = {},
        alive = {}, moved = {}, semaphores = {}, news = {}, bytes = 0 }
end

function flush_all(c)
    for _, tube in pairs(c.by_number) do
        flush(tube)
    end
    flush_semaphores(c)
end

-- Lease numbers begin at this clock where that is further than those that were given, so that none is issued twice even if what was
-- written last is lost with an instance: in steps of four microseconds, faster than tasks can be taken, since the year 2020, because
-- Lua is quick with numbers below 10^14 only. Servers reserve them ahead of the clock, so another instance begins far ahead of it: by more
-- than four minutes.
local LEASE_EPOCH, LEASE_STEP, LEASES_AHEAD = 1577836800000000, 4, 67108864

local function lease_now()
    return math.floor((micros() - LEASE_EPOCH) / LEASE_STEP)
end

-- How much other instances have written, as far as it arrived here; 0 is what is kept here alone.
local function foreign()
    local own, sum = box.info.id, 0
    for id, lsn in pairs(box.info.vclock) do
        if id ~= own and id ~= 0 then
            sum = sum + tonumber(lsn)
        end
    end
    return sum
end

-- Whether all tasks were counted since this instance can be written to, and no other was written to meanwhile.
local function is_counted(others)
    local row = S.here:get(0)
    return row ~= nil and row[2] == others
end

-- Counts all tasks where they were not. That is part of the caller's transaction, and has a row in the log: others that wait for
-- theirs may have to be undone, and would find their counts written over.
local function begin_here()
    local others = foreign()
    if is_counted(others) then
        return
    end
    for _, live in ipairs(S.live:select()) do
        S.live:delete(live[1])
    end
    for _, tube in S.tube:pairs() do
        count_tube(tube[1])
    end
    write_meta('counted', micros())
    if others > 0 then
        write_meta('lease', math.max(read_meta('lease') or 0, lease_now() + LEASES_AHEAD))
    end
    S.here:replace({ 0, others, micros(), 0 })
    news.since[PREFIX] = steady()
    forget_told()
end

local function begin_and(work, ...)
    begin_here()
    return work(...)
end

-- Runs in one transaction, or not at all: what went wrong is thrown on.
local function atomically(work, ...)
    if box.info.ro then
        box.error(box.error.READONLY)
    end
    box.begin()
    local done, answer = pcall(begin_and, work, ...)
    if not done then
        box.rollback()
        error(answer, 0)
    end
    box.commit()
    return answer
end

-- Ends the part that a server had in all sessions but these.
local function part_sessions(c, server, kept)
    for _, row in ipairs(S.connection:select({ server })) do
        if not kept[row[2]] then
            if S.session:get(row[2]) then
                connect(c, server, row[2], 0)
            else
                S.connection:delete({ server, row[2] })
            end
        end
    end
end

-- For how long a server was not heard: what is written down of it counts where this instance has not heard it itself.
local function silent_for(row)
    local last = news.last[row[1]]
    if last then
        return steady() - last
    end
    return micros() - math.max(tonumber(row[2]), news.heard[row[1]] or 0)
end

-- Whether a server that lives must have been heard by now: an instance that was away itself, or stood still, heard nobody.
local function may_judge(patience)
    note_pulse()
    news.since[PREFIX] = news.since[PREFIX] or steady()
    return math.max(news.since[PREFIX], news.awake) + patience <= steady()
end

-- All servers are gone, and with them all sessions: taken tasks go back, temporary tubes are empty, numbers begin again.
local function begin_anew(c)
    for _, row in ipairs(S.server:select()) do
        forget_server(row[1])
    end
    for _, row in ipairs(S.connection:select()) do
        S.connection:delete({ row[1], row[2] })
    end
    -- Nobody works any more when semaphores decide, and who is forgotten leaves them first.
    local gone, back = {}, {}
    for _, row in ipairs(S.tube:select()) do
        local tube = open_number(c, row[1])
        if tube.o.temporary then
            gone[#gone + 1] = { tube, empty(tube) }
        else
            back[#back + 1] = { tube, give_back_all(c, tube, S.taken:select({ tube.number }), true) }
        end
    end
    for _, moved in ipairs({ gone, back }) do
        for _, of_one in ipairs(moved) do
            regate(c, of_one[1], of_one[2])
        end
    end
    for _, tube in pairs(c.by_number) do
        tube.n.done = 0
        for _, call in ipairs(CALLS) do
            tube.n[call] = 0
        end
        tube.changed = true
    end
    for _, row in ipairs(S.session:select()) do
        S.session:delete(row[1])
    end
    S.meta:delete('session_ttr')
    -- Counters begin again also where nothing else changes, and must not be written without a row for the log.
    write_meta('begun', micros())
    flush_all(c)
end

local function begin_anew_if_alone(c, patience)
    local judges = may_judge(patience)
    for _, row in S.server:pairs() do
        if not judges or silent_for(row) < patience then
            return
        end
    end
    begin_anew(c)
end

local api = {}

-- A server begins. Answers the version of what is kept here, how it is kept, and the version of Tarantool.
function api.begin(server, now, patience)
    if box.space[full_name('meta')] == nil then
        if box.info.ro then
            return { 0, box.cfg.wal_mode, _TARANTOOL, true }
        end
        make_spaces()
    end
    local found = box.space[full_name('meta')]:get('format')[2]
    if found ~= FORMAT or box.info.ro then
        return { found, box.cfg.wal_mode, _TARANTOOL, box.info.ro }
    end
    find_spaces()
    atomically(function()
        begin_anew_if_alone(new_context(server, moment(now)), patience)
        S.server:replace({ server, micros(), 0 })
        hear(server)
    end)
    return { found, box.cfg.wal_mode, _TARANTOOL, false }
end

-- A server says that it lives, and looks after those that have not said so for a while. A server that was away itself does not judge
-- others, and a lost one has missed both of its last two heartbeats: perhaps it was Tarantool that was away. Answers how many others there are,
-- how many were lost, and whether this one was.
function api.beat(server, now, patience)
    return atomically(function()
        local at, lost, row = micros(), 0, S.server:get(server)
        if not row then
            -- It first says how things stand there.
            return { S.server:len(), 0, true }
        end
        local was_away, previous = silent_for(row) >= patience, note_beat(server)
        S.server:update(server, { { '=', 2, at } })
        hear(server)
        if may_judge(patience) and previous and not was_away then
            local c = new_context(server, moment(now))
            for _, other in ipairs(S.server:select()) do
                if silent_for(other) >= math.max(patience, steady() - previous) then
                    part_sessions(c, other[1], {})
                    forget_server(other[1])
                    lost = lost + 1
                end
            end
        end
        return { S.server:len() - 1, lost, false }
    end)
end

-- A server ends in good order.
api['end'] = function(server, now, patience)
    return atomically(function()
        local c = new_context(server, moment(now))
        part_sessions(c, server, {})
        forget_server(server)
        begin_anew_if_alone(c, patience)
    end)
end

-- Ranges of lease numbers in order, those that meet as one.
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

-- Whether a number is in one of these.
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

-- Deliveries that nobody heard of, by the numbers of their tubes. Each tube is read once, and all of them where one has another
-- name by now: lease numbers are everybody's.
local function find_unheard(c, unheard)
    local wanted, everywhere = {}, false
    local ranges = {}
    for place, row in ipairs(unheard) do
        local tube = open_tube(c, row[1])
        if tube then
            wanted[tube.number] = true
        else
            everywhere = true
        end
        ranges[place] = { tonumber(row[2]), tonumber(row[3]) }
    end
    if everywhere then
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

local function give_back_unheard(c, unheard)
    for of, all in pairs(find_unheard(c, unheard)) do
        local tube = open_number(c, of)
        regate(c, tube, give_back_all(c, tube, all, false))
    end
end

-- A server that lost the thread says which sessions are connected there, which deliveries nobody heard of, and the last of
-- its calls, which is this one; what it asked before is not done any more. Answers the last that is not.
function api.settle(server, now, last, sessions, unheard)
    return atomically(function()
        local row = S.server:get(server)
        if row and row[3] >= last then
            -- It was held up on the way, and is done already.
            return row[3]
        end
        local c, kept = new_context(server, moment(now)), {}
        S.server:replace({ server, micros(), last })
        hear(server)
        for _, row in ipairs(sessions) do
            kept[row[1]] = true
        end
        part_sessions(c, server, kept)
        for _, row in ipairs(sessions) do
            if not is_alive(c, row[1]) then
                -- It ended meanwhile. It goes on without what it held.
                end_session(c, row[1])
            end
            connect(c, server, row[1], row[2])
        end
        give_back_unheard(c, unheard)
        flush_all(c)
        return last
    end)
end

-- Lease numbers that nobody else gets.
function api.leases(size)
    return atomically(function()
        local first = math.max(read_meta('lease') or 0, lease_now())
        write_meta('lease', first + size)
        return first
    end)
end
