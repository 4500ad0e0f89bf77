-- The way in: one call asks for any number of things, one after the other, in one transaction.

-- Who is further behind than this looks at everything.
local NOTICES_MAX = 1000

-- How long replicas are waited for.
local REPLICAS_SECONDS = 5

local function tell(server, tubes, events)
    news.number = news.number + 1
    news.notices[news.number] = { PREFIX, server, tubes, events }
    news.notices[news.number - NOTICES_MAX] = nil
    news.cond:broadcast()
end

-- Of which semaphores there may be events: their keys, or true for any.
local function news_of(c)
    if c.news == true then
        return true
    end
    local keys = {}
    for key in pairs(c.news) do
        keys[#keys + 1] = key
    end
    return keys
end

-- What others may be waiting for: tubes with something to take, and tubes with room.
local function effects(c)
    local ready, rooms, names = {}, {}, {}
    for of in pairs(c.settled) do
        local tube = c.by_number[of]
        local count, free = takeable(tube), room(tube)
        if count > 0 then
            ready[#ready + 1] = { tube.name, count }
        end
        if c.unlimited[of] then
            rooms[#rooms + 1] = { tube.name, NEVER }
        elseif free and free > 0 then
            rooms[#rooms + 1] = { tube.name, free }
        end
        if count > 0 or free then
            names[#names + 1] = tube.name
        end
    end
    return ready, rooms, names
end

-- When time alone next changes something.
local function next_wakeup(c)
    local first = S.live.index[1]:min()
    local at = first and moment(first[2]) or FAR
    local session = S.session.index[1]:min()
    at = math.min(at, session and moment(session[3]) or FAR, next_semaphore(c))
    return at < FAR and at or NULL
end

-- Whether a call of this number is still wanted: not from a server that others took for dead, nor one that gave it up.
local function is_wanted(server, call)
    local row = S.server:get(server)
    return row ~= nil and row[3] < call
end

-- Answers as many as have room in one answer. The calls of up to this number were sent together, and must not be done before the rest of
-- this one.
local function run(c, commands, together)
    begin_here()
    local replies = {}
    for place, command in ipairs(commands) do
        if c.bytes > ANSWER_BYTES_MAX then
            S.server:update(c.server, { { '=', 3, together } })
            break
        end
        replies[place] = verbs[command[1]](c, command)
    end
    flush_all(c)
    if c.gone then
        -- What it found gone may be so by a batch that is not in the log yet: it is answered behind that one, or not at all.
        S.server:replace(S.server:get(c.server))
    end
    return replies
end

-- Waits until so many replicas have all that was written here; whether they have in time.
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

-- What is left to do when a batch is done; whatever goes wrong here, it is not undone. Answers whether enough replicas have it.
local function finish_batch(server, names, events, replicas)
    if S.server:len() > 1 and (#names > 0 or events) then
        tell(server, names, events)
    end
    return replicas == 0 or wait_for_replicas(replicas, REPLICAS_SECONDS)
end

-- Answers the replies, this clock, when a tick is wanted, what can be taken, where there is room, and of which semaphores there may be
-- events; or nothing for a call that is not wanted any more. Where replicas are to have it first and do not in time, it answers that
-- alone.
function api.batch(server, call, now, lease, commands, replicas, together)
    if box.info.ro then
        box.error(box.error.READONLY)
    end
    if not is_wanted(server, call) then
        return {}
    end
    -- Even if its heartbeat is late.
    hear(server)
    local c = new_context(server, moment(now), lease and tonumber(lease))
    box.begin()
    local done, replies = pcall(run, c, commands, together or call)
    if not done then
        box.rollback()
        error(replies, 0)
    end
    local ready, rooms, names = effects(c)
    local next_at, keys = next_wakeup(c), news_of(c)
    box.commit()
    confirm_told(c)
    local finished, replicated = pcall(finish_batch, server, names, keys == true or #keys > 0, replicas)
    if not (finished and replicated) then
        return { REPLICAS_SECONDS }
    end
    return { replies, c.now, next_at, ready, rooms, keys }
end

-- Tubes, and whether there are events, of which other servers told between these notices.
local function heard(server, seen, last)
    local tubes, known, events = {}, {}, false
    for notice = seen + 1, last do
        local prefix, from, names, with_events = unpack(news.notices[notice], 1, 4)
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

-- Waits until another server did something after the notice of this number, or for so many seconds. Answers the number of the
-- last notice, tubes, whether there are events, and whether anything may have happened.
function api.watch(server, seen, seconds)
    local deadline = fiber.clock() + seconds
    while true do
        if box.info.ro then
            -- Nobody will tell anything here any more.
            box.error(box.error.READONLY)
        end
        local last = news.number
        if seen == nil or seen > last or last - seen > NOTICES_MAX then
            return { last, {}, false, true }
        end
        local tubes, events = heard(server, seen, last)
        local left = deadline - fiber.clock()
        if #tubes > 0 or events or left <= 0 then
            return { last, tubes, events, false }
        end
        seen = last
        news.cond:wait(left)
    end
end
