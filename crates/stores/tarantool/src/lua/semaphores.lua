-- What can be asked of semaphores.

local SEMAPHORES_MAX, TASKS_MAX = 100000, 10000
local DONE_GRANT, STALE_GRANT, MISSING_GRANT, NOT_ASKED_GRANT = 0, 1, 2, 3
local RELEASE, YIELD, DECLINE, EXTEND = 0, 1, 2, 3
local DEFAULTS = { 1000, 900, 0, 0, 0, 60000000, false, false, false, NULL, NULL, NULL }
-- Where in the options stands what a change names, in the order of the change.
local CHANGED = { 1, 2, 3, 4, 5, 10, 6, 7, 11, 12, 8, 9 }
-- Which of them can be taken away: false says so there.
local REMOVABLE = { [10] = true, [11] = true, [12] = true }
-- How long after its first delivery an event is delivered again, and at most.
local VISIBILITY, VISIBILITY_MAX = 30000000, 600000000

-- The options as they are shown: the tail is what it comes to.
local function shown_options(s)
    local shown = {}
    for place = 1, 12 do
        shown[place] = s.options[place]
    end
    shown[2] = s.tail
    return shown
end

local function semaphore_info(s)
    local next_event = S.event.index[2]:select({ s.number, 0 }, { limit = 1 })[1]
    return { s.key, shown_options(s), s.count[WAIT], s.count[BACK], s.count[HOLDS] + s.count[PINNED], s.count[ASKED], s.events,
        next_event and next_event[7] or NULL }
end

local function changed_options(options, change)
    local new = {}
    for place = 1, 12 do
        new[place] = options[place]
    end
    for place, option in ipairs(CHANGED) do
        local value = change[place]
        if value ~= nil then
            new[option] = value == false and REMOVABLE[option] and NULL or value
        end
    end
    if change[2] ~= nil and new[2] > new[1] then
        return nil, refuse('invalid', string.format('try_release is %d, but only %d may be active; it must not be more', new[2], new[1]))
    end
    return new
end

local function configure(c, command)
    local key, only_new, change = command[2], command[3], command[4]
    local s = find_semaphore(c, key)
    local options, refusal = changed_options(s and s.options or DEFAULTS, change)
    if refusal then
        return nil, refusal
    elseif s and not only_new then
        s.options = options
        read_semaphore_options(s)
        settle_semaphore(c, s)
    elseif not s then
        if S.semaphore:len() >= SEMAPHORES_MAX then
            return nil, refuse('too_many_semaphores', SEMAPHORES_MAX)
        end
        local number = free_semaphore_number()
        S.semaphore:insert({ number, key, options, read_meta('grants') or 0, NEVER, NEVER, 0, 0, 0, 0, 0, 0, 0 })
        s = open_semaphore(c, number)
    end
    return { 0, { semaphore_info(s) } }
end

local function standings(s, tasks)
    local found = {}
    for _, task in ipairs(tasks) do
        local place = place_of(s, task)
        if place then
            found[#found + 1] = standing(place)
        end
    end
    return { 1, found }
end

local function enqueue(c, command)
    local s, tasks = find_semaphore(c, command[2]), {}
    if not s then
        return nil, refuse('semaphore_not_found', command[2])
    end
    for place, wish in ipairs(command[3]) do
        tasks[place] = wish[1]
        stand_in_line(c, s, wish[1], -tonumber(wish[2]) + 0)
    end
    settle_semaphore(c, s)
    return standings(s, tasks)
end

local function finish_held(c, s, place, item)
    local task, grant, verb = place[P_TASK], place[P_GRANT], item[2]
    if verb == EXTEND then
        -- Who prolongs a grant knows of it.
        local acquired = find_event(s, task, grant, 'acquired')
        if acquired and remove_event(s, acquired) then
            -- A request that had to wait for it may be handed out now.
            note_news(c, s)
        end
        set_place(c, s, place, { [P_LEASE] = stamp(later(c.now, tonumber(item[4]))), [P_ACK_BY] = NEVER })
        return
    end
    forget_events(s, task, grant)
    if verb == RELEASE then
        remove_place(c, s, place)
    elseif verb == YIELD then
        stand_back(c, s, place, s.cool_down)
    else
        set_place(c, s, place, { [P_PINNED] = true, [P_REVOKE_AT] = NULL, [P_ACK_BY] = NEVER })
    end
end

local function finish_grant(c, s, item)
    local place, grant = place_of(s, item[1]), given(item[3])
    if not place then
        return MISSING_GRANT
    elseif grant and (place[P_GRANT] == nil or place[P_GRANT] ~= grant) then
        return STALE_GRANT
    elseif item[2] == DECLINE and place[P_GRANT] ~= nil and place[P_REVOKE_AT] == nil then
        -- Nothing to decline. Twice is the same as once.
        return place[P_PINNED] and DONE_GRANT or NOT_ASKED_GRANT
    elseif place[P_GRANT] ~= nil then
        finish_held(c, s, place, item)
        return DONE_GRANT
    elseif item[2] == RELEASE then
        remove_place(c, s, place)
        return DONE_GRANT
    end
    -- It has yielded already, and there is nothing to keep or prolong.
    return item[2] == YIELD and DONE_GRANT or STALE_GRANT
end

local function finish_grants(c, command)
    local s, outcomes = find_semaphore(c, command[2]), {}
    if not s then
        return nil, refuse('semaphore_not_found', command[2])
    end
    for place, item in ipairs(command[3]) do
        outcomes[place] = finish_grant(c, s, item)
    end
    settle_semaphore(c, s)
    return { 2, outcomes }
end

local function look(c, command)
    local s = find_semaphore(c, command[2])
    if not s then
        return nil, refuse('semaphore_not_found', command[2])
    end
    return standings(s, command[3])
end

local HOLDERS = 0

-- The best of a class that are behind this rank and number of arrival, at most so many.
local function add_behind(found, s, class, after, count)
    local first = { s.number, class }
    if after then
        first[3], first[4] = -tonumber(after[1]) + 0, after[2]
    end
    for _, place in ipairs(S.place.index[1]:select(first, { iterator = after and 'GT' or 'EQ', limit = count })) do
        if place[1] ~= s.number or place[P_CLASS] ~= class then
            break
        end
        found[#found + 1] = place
    end
end

local function is_better(place, other)
    local rank, other_rank = tonumber(place[P_RANK]), tonumber(other[P_RANK])
    return rank < other_rank or rank == other_rank and place[P_SEQ] < other[P_SEQ]
end

local function members(c, command)
    local s, part, count, after = find_semaphore(c, command[2]), command[3], tonumber(command[4]), given(command[5])
    if not s then
        return nil, refuse('semaphore_not_found', command[2])
    end
    local found, shown, last = {}, {}, nil
    for _, class in ipairs(count == 0 and {} or part == HOLDERS and { HOLDS, PINNED, ASKED } or { WAIT }) do
        add_behind(found, s, class, after, count)
    end
    table.sort(found, is_better)
    for at = 1, math.min(#found, count) do
        local place = found[at]
        local row, of, id = standing(place), tube_task(place[P_TASK])
        local tube = of and open_number(c, of)
        row[1] = of and id or row[1]
        shown[at] = { tube and tube.name or NULL, row }
        last = place
    end
    local next = #shown == count and last and { -tonumber(last[P_RANK]) + 0, last[P_SEQ] } or NULL
    return { 5, shown, next }
end

local function tube_behind(key)
    for _, row in S.tube:pairs() do
        if row[3][O.semaphore] == key then
            return row[2]
        end
    end
end

-- Removes a semaphore with all it has. Where a tube is behind it, the tube would never let a task go on.
local function drop(c, command)
    local key, force = command[2], command[3]
    local s = find_semaphore(c, key)
    if not s then
        return nil, refuse('semaphore_not_found', key)
    end
    local tube = tube_behind(key)
    if tube then
        return nil, refuse('semaphore_has_tube', key, tube)
    end
    local n = s.count
    if not force and n[WAIT] + n[BACK] + n[HOLDS] + n[PINNED] + n[ASKED] > 0 then
        return nil, refuse('semaphore_in_use', key)
    end
    for _, event in ipairs(S.event.index[3]:select({ s.number })) do
        S.event:delete(event[1])
    end
    for _, place in ipairs(S.place:select({ s.number })) do
        S.place:delete({ s.number, place[P_TASK] })
    end
    write_meta('grants', math.max(read_meta('grants') or 0, s.grant_seq))
    S.semaphore:delete(s.number)
    c.semaphores[s.number] = nil
    return { 6 }
end

local function list(c, command)
    local key, found = given(command[2]), {}
    if key then
        local s = find_semaphore(c, key)
        if not s then
            return nil, refuse('semaphore_not_found', key)
        end
        return { 0, { semaphore_info(s) } }
    end
    for _, row in S.semaphore.index[1]:pairs() do
        found[#found + 1] = semaphore_info(open_semaphore(c, row[1]))
    end
    return { 0, found }
end

local function hand_out(c, event)
    local attempts = math.min(event[6] + 1, ATTEMPTS_MAX)
    local wait = math.min(VISIBILITY * 2 ^ math.min(attempts - 1, 10), VISIBILITY_MAX)
    S.event:update(event[1], { { '=', 6, attempts }, { '=', 7, stamp(later(c.now, wait)) } })
    local of, id = tube_task(event[3])
    local tube = of and open_number(c, of)
    return { event[1], open_semaphore(c, event[2]).key, of and id or event[3], event[4], event[5], attempts,
        tube and tube.name or NULL }
end

local function fetch(c, command)
    local count, key, handed = tonumber(command[2]), given(command[4]), {}
    local s = key and find_semaphore(c, key)
    if key and not s then
        return nil, refuse('semaphore_not_found', key)
    end
    local order, first = S.event.index[1], { 0 }
    if s then
        order, first = S.event.index[2], { s.number, 0 }
    end
    for _, event in ipairs(order:select(first, { limit = count })) do
        if event[7] > c.now then
            break
        end
        handed[#handed + 1] = hand_out(c, event)
    end
    return { 3, handed }
end

local function arrived(c, id)
    local event = S.event:get(id)
    if not event then
        return false
    end
    local s = open_semaphore(c, event[2])
    if remove_event(s, event) then
        -- The next event of this grant had to wait for this one.
        note_news(c, s)
    end
    local place = place_of(s, event[3])
    if event[5] == 'acquired' and place and place[P_GRANT] == event[4] and place[P_ACK_BY] ~= NEVER then
        set_place(c, s, place, { [P_ACK_BY] = NEVER })
    end
    return true
end

local function acknowledge(c, command)
    local count = 0
    for _, id in ipairs(command[2]) do
        count = count + (arrived(c, id) and 1 or 0)
    end
    return { 4, count }
end

local VERBS = { [0] = configure, enqueue, finish_grants, look, list, fetch, acknowledge, members, drop }

verbs[17] = function(c, command)
    local asked = command[2]
    local answer, refusal = VERBS[asked[1]](c, asked)
    if refusal then
        return refusal
    end
    follow(c)
    return { REPLY.semaphore, answer }
end

-- A grant ends because nobody spoke up for it. Its task stands in line again after this time, or leaves.
local function expire(c, s, place, back_after)
    local task, grant = place[P_TASK], place[P_GRANT]
    if forget_events(s, task, grant) then
        tell_holder(c, s, task, grant, 'expired')
    end
    if back_after then
        stand_back(c, s, place, back_after)
    else
        remove_place(c, s, place)
    end
end

-- A holder that was asked to release has not done so in time.
local function insist(c, s, place)
    local task, grant = place[P_TASK], place[P_GRANT]
    -- The place of a task that is worked on in its tube is free when the work ends, and not before.
    if s.force and not tube_task(task) then
        forget_events(s, task, grant)
        tell_holder(c, s, task, grant, 'revoked')
        return stand_back(c, s, place, s.cool_down)
    end
    if not find_event(s, task, grant, 'try_release') then
        tell_holder(c, s, task, grant, 'try_release', 1)
    end
    set_place(c, s, place, { [P_REVOKE_AT] = stamp(later(c.now, s.revoke_grace)) })
end

-- The moment of one task has come.
local function end_wait(c, s, place)
    if place[P_GRANT] == nil then
        stand_back(c, s, place, 0)
    elseif place[P_LEASE] <= c.now then
        -- Who never heard of its grant did not let it run out.
        local leaves = s.drop_expired and not is_untold(s, place[P_TASK], place[P_GRANT])
        expire(c, s, place, not leaves and 0 or nil)
    elseif place[P_ACK_BY] <= c.now then
        -- Whoever should have heard of the grant may be down for a while.
        expire(c, s, place, s.ack_timeout or 0)
    else
        insist(c, s, place)
    end
end

-- Does what is due in at most so many semaphores; answers in how many something was.
function tick_semaphores(c, limit)
    local ticked = 0
    flush_semaphores(c)
    while ticked < limit do
        local first = S.semaphore.index[2]:min()
        if not first or first[6] > c.now then
            break
        end
        local s = open_semaphore(c, first[1])
        for _, place in ipairs(S.place.index[2]:select({ s.number }, { limit = TASKS_MAX })) do
            if place[P_DEADLINE] > c.now then
                break
            end
            end_wait(c, s, place)
        end
        settle_semaphore(c, s)
        flush_semaphores(c)
        ticked = ticked + 1
    end
    note_due(c)
    told_until(c, c.now)
    follow(c)
    return ticked
end
