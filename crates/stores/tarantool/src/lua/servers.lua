-- The servers that share these tubes. Each sends heartbeats; the sessions of a dead server are ended. After all servers were gone, taken
-- tasks are given back.

-- State of this instance that all versions of these procedures share: notices of changes, and the last contact of each server.
local instance = rawget(_G, NEWS)
if not instance then
    instance = { number = 0, cond = fiber.cond(), notices = {}, heard = {} }
    rawset(_G, NEWS, instance)
end
-- By the monotonic clock: the last contact of each server, and since when this instance is writable for each prefix.
instance.last, instance.since = instance.last or {}, instance.since or {}
-- The last two heartbeats of each server, by that clock.
instance.beats = instance.beats or {}

-- An instance that does not run for so long, in microseconds, receives no heartbeats; it notes regularly that it runs.
local STANDSTILL, PULSE_SECONDS = 1000000, 0.25

local function steady()
    return tonumber(clock.monotonic64() / 1000)
end

-- Notes that this instance runs, and since when without a standstill.
local function note_pulse()
    local at = steady()
    if at - instance.pulse > STANDSTILL then
        instance.awake = at
    end
    instance.pulse = at
end

if not instance.pulse then
    instance.pulse, instance.awake = steady(), steady()
    fiber.create(function()
        fiber.name('taskyard')
        while true do
            fiber.sleep(PULSE_SECONDS)
            note_pulse()
        end
    end)
end

-- Notes a contact of a server. The time of day is for servers of older versions.
local function note_contact(server)
    instance.heard[server], instance.last[server] = micros(), steady()
end

local function forget_server(server)
    S.server:delete(server)
    instance.heard[server], instance.last[server], instance.beats[server] = nil, nil, nil
end

-- Notes a heartbeat. Answers the one before the last, if this instance received so many.
local function note_beat(server)
    local before = instance.beats[server] or {}
    instance.beats[server] = { steady(), before[1] }
    return before[2]
end

-- The state of one call.
local function new_context(server, now, lease)
    return { now = now or micros(), server = server, lease = lease, by_name = {}, by_number = {}, changed_tubes = {}, unlimited = {},
        alive = {}, moved = {}, semaphores = {}, event_keys = {}, failed = {}, bytes = 0, freed_early = 0 }
end

function flush_all(c)
    for _, tube in pairs(c.by_number) do
        flush(tube)
    end
    flush_semaphores(c)
end

-- Lease numbers begin not below the clock, so that none is issued twice even if an instance loses its last writes: in steps of four
-- microseconds, faster than tasks can be taken, since the year 2020, because Lua is fast only with numbers below 10^14. Servers reserve them
-- ahead of the clock, so another instance begins far ahead of it: by more than four minutes.
local LEASE_EPOCH, LEASE_STEP, LEASES_AHEAD = 1577836800000000, 4, 2 ^ 26

local function lease_now()
    return math.floor((micros() - LEASE_EPOCH) / LEASE_STEP)
end

-- How much other instances have written, as far as it arrived here. Component 0 of the vclock is local.
local function foreign()
    local own, sum = box.info.id, 0
    for id, lsn in pairs(box.info.vclock) do
        if id ~= own and id ~= 0 then
            sum = sum + tonumber(lsn)
        end
    end
    return sum
end

-- Whether all tasks were counted since this instance became writable, and no other instance was written to meanwhile.
local function is_counted(others)
    local row = S.here:get(0)
    return row ~= nil and row[2] == others
end

-- Counts all tasks if necessary. It is part of the caller's transaction and writes a row to the log: transactions that wait for the log may be
-- rolled back, and would find their counts overwritten.
local function ensure_counted()
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
    formats.find_spaces()
    done_tasks.count_all()
    keys.count_all()
    write_meta('counted', micros())
    if others > 0 then
        write_meta('lease', math.max(read_meta('lease') or 0, lease_now() + LEASES_AHEAD))
    end
    S.here:replace({ 0, others, micros(), 0 })
    instance.since[PREFIX] = steady()
    reset_announced()
end

local function begin_and(work, ...)
    ensure_counted()
    return work(...)
end

-- Runs work in one transaction; errors are raised again after the rollback.
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

-- Removes the connections of a server from all sessions but these.
local function disconnect_sessions(c, server, kept, dead)
    for _, row in ipairs(S.connection:select({ server })) do
        if not kept[row[2]] then
            if S.session:get(row[2]) then
                connect(c, server, row[2], 0, dead)
            else
                S.connection:delete({ server, row[2] })
            end
        end
    end
end

-- How long ago the last contact of a server was: the stored one counts if this instance had none itself.
local function silent_for(row)
    local last = instance.last[row[1]]
    if last then
        return steady() - last
    end
    return micros() - math.max(tonumber(row[2]), instance.heard[row[1]] or 0)
end

-- Whether every living server must have had contact by now: an instance that was away or stood still received no heartbeats.
local function can_declare_dead(timeout)
    note_pulse()
    instance.since[PREFIX] = instance.since[PREFIX] or steady()
    return math.max(instance.since[PREFIX], instance.awake) + timeout <= steady()
end

-- All servers are gone, and with them all sessions: gives back taken tasks, empties temporary tubes, resets counters.
local function restart(c)
    for _, row in ipairs(S.server:select()) do
        forget_server(row[1])
    end
    for _, row in ipairs(S.connection:select()) do
        S.connection:delete({ row[1], row[2] })
    end
    -- All deliveries have ended before semaphores decide, and removed tasks leave them first.
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
    -- Counters are reset even if nothing else changes, and must not be written without a log row.
    write_meta('begun', micros())
    flush_all(c)
end

local function restart_if_alone(c, timeout)
    local can_declare = can_declare_dead(timeout)
    for _, row in S.server:pairs() do
        if not can_declare or silent_for(row) < timeout then
            return
        end
    end
    restart(c)
end

local api = {}

-- Registers a server. Answers the version of the stored format, wal_mode, the version of Tarantool, and whether it is read-only.
function api.begin(server, now, timeout)
    if box.space[full_name('meta')] == nil then
        if box.info.ro then
            return { 0, box.cfg.wal_mode, _TARANTOOL, true }
        end
        make_spaces()
    end
    local found = box.space[full_name('meta')]:get('format')[2]
    if found > FORMAT or box.info.ro then
        return { found, box.cfg.wal_mode, _TARANTOOL, box.info.ro }
    end
    formats.prepare()
    find_spaces()
    atomically(function()
        restart_if_alone(new_context(server, moment(now)), timeout)
        S.server:replace({ server, micros(), 0 })
        note_contact(server)
    end)
    return { found, box.cfg.wal_mode, _TARANTOOL, false }
end

-- Records a heartbeat and removes dead servers. A server that was away itself does not remove others, and a dead one has missed both of its
-- last two heartbeats: Tarantool may have been away. Answers how many others there are, how many were removed, and whether this one was.
function api.heartbeat(server, now, timeout)
    return atomically(function()
        local at, lost, row = micros(), 0, S.server:get(server)
        if not row then
            -- It must report its sessions first.
            return { S.server:len(), 0, true }
        end
        local was_away, previous = silent_for(row) >= timeout, note_beat(server)
        S.server:update(server, { { '=', 2, at } })
        note_contact(server)
        if can_declare_dead(timeout) and previous and not was_away then
            local c = new_context(server, moment(now))
            for _, other in ipairs(S.server:select()) do
                if silent_for(other) >= math.max(timeout, steady() - previous) then
                    disconnect_sessions(c, other[1], {}, true)
                    forget_server(other[1])
                    lost = lost + 1
                end
            end
        end
        return { S.server:len() - 1, lost, false }
    end)
end

-- A server ends in order.
api['end'] = function(server, now, timeout)
    return atomically(function()
        local c = new_context(server, moment(now))
        disconnect_sessions(c, server, {})
        forget_server(server)
        restart_if_alone(c, timeout)
    end)
end

-- Reserves lease numbers.
function api.leases(size)
    return atomically(function()
        local first = math.max(read_meta('lease') or 0, lease_now())
        write_meta('lease', first + size)
        return first
    end)
end
