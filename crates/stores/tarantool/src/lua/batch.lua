-- Runs the commands of one call in one transaction, and passes notices between servers.

-- A server that is further behind than this looks at everything.
local NOTICES_MAX = 1000

-- How long to wait for replicas, and how long a health check does.
local REPLICAS_SECONDS, CHECK_SECONDS = 5, 2

local function notify_servers(server, tubes, events)
    instance.number = instance.number + 1
    instance.notices[instance.number] = { PREFIX, server, tubes, events }
    instance.notices[instance.number - NOTICES_MAX] = nil
    instance.cond:broadcast()
end

-- The keys of semaphores that may have events, or true for any.
local function event_keys_of(c)
    if c.event_keys == true then
        return true
    end
    local keys = {}
    for key in pairs(c.event_keys) do
        keys[#keys + 1] = key
    end
    return keys
end

-- What waiting callers may need: tubes with takeable tasks, and tubes with room; and tubes in which deliveries failed.
local function effects(c)
    local ready, rooms, names, failed = {}, {}, {}, {}
    for of in pairs(c.changed_tubes) do
        local tube = c.by_number[of]
        local count, free = takeable(tube), room(tube)
        if c.failed[of] then
            failed[#failed + 1] = { tube.name, c.failed[of] }
        end
        if count > 0 then
            ready[#ready + 1] = { tube.name, count }
        end
        if c.unlimited[of] then
            rooms[#rooms + 1] = { tube.name, STORED_NEVER }
        elseif free and free > 0 then
            rooms[#rooms + 1] = { tube.name, free }
        end
        if count > 0 or free then
            names[#names + 1] = tube.name
        end
    end
    return ready, rooms, names, failed
end

-- The next deadline.
local function next_wakeup(c)
    local first = S.live.index[1]:min()
    local at = first and moment(first[2]) or NEVER
    local session = S.session.index[1]:min()
    at = math.min(at, session and moment(session[3]) or NEVER, next_semaphore(c), done_tasks.wakeup(), keys.wakeup())
    return at < NEVER and at or NULL
end

-- Whether a call of this number is still wanted: not from a server that others took for dead, nor one that gave it up.
local function is_wanted(server, call)
    local row = S.server:get(server)
    return row ~= nil and row[3] < call
end

-- Runs commands until the answer is full. The calls up to `together` were sent at the same time, and must not run before the rest of this
-- one. The commands at the positions in `invalid` have values that their server refuses.
local function run(c, commands, together, invalid)
    ensure_counted()
    local replies, is_invalid = {}, {}
    for _, place in ipairs(invalid) do
        is_invalid[place] = true
    end
    for place, command in ipairs(commands) do
        if c.bytes > REPLY_BYTES_MAX then
            S.server:update(c.server, { { '=', 3, together } })
            break
        end
        c.is_invalid = is_invalid[place]
        replies[place] = verbs[command[1]](c, command)
    end
    flush_all(c)
    if c.follows then
        -- A task may be gone, or a key held, because of a batch that is not in the log yet: this answer must follow that batch, or fail with
        -- it.
        S.server:replace(S.server:get(c.server))
    end
    return replies
end

-- Runs the commands in a transaction, which the caller commits.
local function run_in_transaction(c, commands, together, invalid)
    box.begin()
    local done, replies = pcall(run, c, commands, together, invalid)
    if not done then
        box.rollback()
        error(replies, 0)
    end
    return replies
end

-- Runs a command that only reads and may yield, outside a transaction.
local function run_reader(c, command)
    if not is_counted(foreign()) then
        atomically(function() end)
    end
    return { verbs[command[1]](c, command) }
end

-- Waits until so many replicas have all writes of this instance; answers whether they have in time.
local function wait_for_replicas(count, seconds)
    local own, written = box.info.id, box.info.lsn
    local deadline = fiber.clock() + seconds
    while true do
        local reached = 0
        for id, replica in pairs(box.info.replication) do
            local heard = id ~= own and replica.downstream and replica.downstream.vclock
            if heard and (heard[own] or 0) >= written then
                reached = reached + 1
            end
        end
        if reached >= count then
            return true
        elseif fiber.clock() > deadline then
            return false
        end
        fiber.sleep(0.0005)
    end
end

-- Finishes a batch after its commit; errors here do not undo it. Answers whether enough replicas have it.
local function finish_batch(server, names, events, replicas)
    if S.server:len() > 1 and (#names > 0 or events) then
        notify_servers(server, names, events)
    end
    return replicas == 0 or wait_for_replicas(replicas, REPLICAS_SECONDS)
end

-- Answers the replies, this clock, the next deadline, tubes with takeable tasks, tubes with room, semaphores that may have events, when the
-- next schedule is due, how many keys were freed before their time, and tubes in which deliveries failed; an empty list for a call that is
-- refused. If too few replicas have the batch in time, it answers only that.
function api.batch(server, call, now, lease, commands, replicas, together, invalid)
    if box.info.ro then
        box.error(box.error.READONLY)
    end
    if not is_wanted(server, call) then
        return {}
    end
    -- A call counts like a heartbeat.
    note_contact(server)
    local c = new_context(server, moment(now), lease and tonumber(lease))
    local is_reader, replies = #commands == 1 and (commands[1][1] == LIST or commands[1][1] == positions.NUMBER), nil
    if is_reader then
        replies = run_reader(c, commands[1])
    else
        replies = run_in_transaction(c, commands, together or call, invalid or {})
    end
    local ready, rooms, names, failed = effects(c)
    local next_at, event_keys, next_schedule = next_wakeup(c), event_keys_of(c), schedules.next_due()
    if not is_reader then
        box.commit()
    end
    confirm_announced(c)
    local finished, replicated = pcall(finish_batch, server, names, event_keys == true or #event_keys > 0, replicas)
    if not (finished and replicated) then
        return { REPLICAS_SECONDS }
    end
    return { replies, c.now, next_at, ready, rooms, event_keys, next_schedule, c.freed_early, failed }
end

-- Writes to the log. Answers whether enough replicas have it.
function api.check_write(replicas)
    atomically(write_meta, 'checked', micros())
    return replicas == 0 or wait_for_replicas(replicas, CHECK_SECONDS)
end

-- Tubes, and whether there are events, in the notices of other servers between these numbers.
local function read_notices(server, seen, last)
    local tubes, known, events = {}, {}, false
    for notice = seen + 1, last do
        local prefix, from, names, with_events = unpack(instance.notices[notice], 1, 4)
        if prefix == PREFIX and from ~= server then
            events = events or with_events or false
            for _, name in ipairs(names) do
                if not known[name] then
                    known[name] = true
                    tubes[#tubes + 1] = name
                end
            end
        end
    end
    return tubes, events
end

-- Waits until another server sends a notice after this number, or for so many seconds. Answers the number of the last notice, tubes, whether
-- there are events, and whether anything may have changed.
function api.watch(server, seen, seconds)
    local deadline = fiber.clock() + seconds
    while true do
        if box.info.ro then
            -- There will be no more notices here.
            box.error(box.error.READONLY)
        end
        local last = instance.number
        if seen == nil or seen > last or last - seen > NOTICES_MAX then
            return { last, {}, false, true }
        end
        local tubes, events = read_notices(server, seen, last)
        local left = deadline - fiber.clock()
        if #tubes > 0 or events or left <= 0 then
            return { last, tubes, events, false }
        end
        seen = last
        instance.cond:wait(left)
    end
end
