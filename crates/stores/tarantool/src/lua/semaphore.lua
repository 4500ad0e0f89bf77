-- One semaphore while a call works on it, who stands where, and what is still to be said to holders. All of it is read when it
-- is needed and written at once, but for the semaphore's own row, which is written in the end.

-- What the files of semaphores say to each other.
local WAIT, BACK, HOLDS, ASKED, PINNED, P_TASK, P_CLASS, P_RANK, P_SEQ, P_ENQUEUED, P_GRANT, P_GRANTED, P_LEASE, P_ACK_BY, P_REVOKE_AT,
    P_PINNED, P_DEADLINE, P_NOT_BEFORE
local follow, gated_task, tube_task, read_semaphore_options, open_semaphore, write_semaphore, free_semaphore_number, place_of,
    set_place, remove_place, stand_back, stand_in_line, waiter, worst_holder, best_asked, best_declined, held, events_of, find_event, remove_event,
    tell_holder, is_untold, forget_events, told_until, note_news, note_due, standing, settle_semaphore

-- Where one may stand. Holders that declined to release are not asked again, so they stand apart.
WAIT, BACK, HOLDS, ASKED, PINNED = 0, 1, 2, 3, 4
-- A place: semaphore, task, class, rank (less is better), number of arrival, and so on.
P_TASK, P_CLASS, P_RANK, P_SEQ, P_ENQUEUED, P_GRANT, P_GRANTED, P_LEASE, P_ACK_BY, P_REVOKE_AT, P_PINNED, P_DEADLINE, P_NOT_BEFORE =
    2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14

local STATUS = { [WAIT] = 'waiting', [BACK] = 'delayed', [HOLDS] = 'granted', [ASKED] = 'try_release', [PINNED] = 'granted' }
-- Sets the tasks of tubes apart from the numbers that callers choose: a tube number above a task id.
local GATED_TASKS, IDS = 9223372036854775808ULL, 562949953421312ULL

-- The number under which a task of a tube stands in a semaphore.
function gated_task(of, id)
    return GATED_TASKS + IDS * of + id
end

-- Which task of which tube stands under this number, if one does.
function tube_task(task)
    if task < GATED_TASKS then
        return nil
    end
    local place = task - GATED_TASKS
    return tonumber(place / IDS), tonumber(place % IDS)
end

local function read_semaphore(row)
    local o = row[3]
    local s = { number = row[1], key = row[2], options = o, grant_seq = row[4], recheck = moment(row[5]), seq = row[13],
        events = row[12], count = { [WAIT] = row[7], [BACK] = row[8], [HOLDS] = row[9], [PINNED] = row[10], [ASKED] = row[11] } }
    read_semaphore_options(s)
    return s
end

function read_semaphore_options(s)
    local o = s.options
    s.active, s.try_release, s.margin = o[1], o[2], tonumber(o[3])
    s.min_hold, s.cool_down, s.revoke_grace = tonumber(o[4]), tonumber(o[5]), tonumber(o[6])
    s.force, s.shed, s.drop_expired = o[7], o[8], o[9]
    s.max_revoking, s.lease, s.ack_timeout = given(o[10]), number(o[11]), number(o[12])
    s.tail = math.min(s.try_release, s.active)
    s.protected = s.active - s.tail
end

function open_semaphore(c, of)
    local s = c.semaphores[of]
    if not s then
        s = read_semaphore(S.semaphore:get(of))
        c.semaphores[of] = s
    end
    return s
end

-- The lowest number that no semaphore has.
function free_semaphore_number()
    local last = S.semaphore.index[0]:max()
    local size = S.semaphore:len()
    if not last or last[1] == size - 1 then
        return size
    end
    local free = 0
    for _, row in S.semaphore:pairs() do
        if row[1] > free then
            break
        end
        free = row[1] + 1
    end
    return free
end

function find_semaphore(c, key)
    local row = S.semaphore.index[1]:get(key)
    return row and open_semaphore(c, row[1])
end

function write_semaphore(s)
    local first = S.place.index[2]:select({ s.number }, { limit = 1 })[1]
    local wakeup = math.min(first and moment(first[P_DEADLINE]) or FAR, s.recheck)
    local n = s.count
    S.semaphore:replace({ s.number, s.key, s.options, s.grant_seq, stamp(s.recheck), stamp(wakeup), n[WAIT], n[BACK], n[HOLDS],
        n[PINNED], n[ASKED], s.events, s.seq })
end

function flush_semaphores(c)
    for _, s in pairs(c.semaphores) do
        if s.changed then
            s.changed = false
            write_semaphore(s)
        end
    end
end

local function class_of(place)
    if place[P_GRANT] == nil then
        return place[P_NOT_BEFORE] == nil and WAIT or BACK
    elseif place[P_REVOKE_AT] ~= nil then
        return ASKED
    end
    return place[P_PINNED] and PINNED or HOLDS
end

-- When time alone next changes something about a place.
local function deadline_of(place)
    if place[P_GRANT] == nil then
        return place[P_NOT_BEFORE] == nil and NEVER or place[P_NOT_BEFORE]
    end
    local at = math.min(moment(place[P_LEASE]), moment(place[P_ACK_BY]))
    if place[P_REVOKE_AT] ~= nil then
        at = math.min(at, moment(place[P_REVOKE_AT]))
    end
    return stamp(at)
end

local function note_moved(c, task)
    if tube_task(task) then
        c.moved[#c.moved + 1] = task
    end
end

function place_of(s, task)
    return S.place:get({ s.number, task })
end

-- Changes where a task stands: some of its fields, by their places.
function set_place(c, s, place, changes)
    local row = place:totable()
    for field, value in pairs(changes) do
        row[field] = value
    end
    s.count[row[P_CLASS]] = s.count[row[P_CLASS]] - 1
    row[P_CLASS], row[P_DEADLINE] = class_of(row), deadline_of(row)
    s.count[row[P_CLASS]] = s.count[row[P_CLASS]] + 1
    s.changed = true
    note_moved(c, row[P_TASK])
    return S.place:replace(row)
end

function remove_place(c, s, place)
    S.place:delete({ s.number, place[P_TASK] })
    s.count[place[P_CLASS]] = s.count[place[P_CLASS]] - 1
    s.changed = true
    note_moved(c, place[P_TASK])
end

-- Without a grant, in line again now or at a moment.
function stand_back(c, s, place, after)
    set_place(c, s, place, { [P_GRANT] = NULL, [P_GRANTED] = NULL, [P_LEASE] = NULL, [P_ACK_BY] = NULL, [P_REVOKE_AT] = NULL,
        [P_PINNED] = false, [P_NOT_BEFORE] = after == 0 and NULL or stamp(later(c.now, after)) })
end

-- Adds a task, or changes its priority: its seniority stays.
function stand_in_line(c, s, task, rank)
    local place = place_of(s, task)
    if not place then
        s.seq = s.seq + 1
        s.count[WAIT] = s.count[WAIT] + 1
        s.changed = true
        S.place:insert({ s.number, task, WAIT, rank, s.seq, c.now, NULL, NULL, NULL, NULL, NULL, false, NEVER, NULL })
        note_moved(c, task)
    elseif tonumber(place[P_RANK]) ~= rank then
        set_place(c, s, place, { [P_RANK] = rank })
    end
end

-- Who stands at this place of the line, from 0.
function waiter(s, place)
    return S.place.index[1]:select({ s.number, WAIT }, { limit = 1, offset = place })[1]
end

function worst_holder(s)
    return S.place.index[1]:select({ s.number, HOLDS }, { limit = 1, iterator = 'REQ' })[1]
end

function best_asked(s)
    return S.place.index[1]:select({ s.number, ASKED }, { limit = 1 })[1]
end

function best_declined(s)
    return S.place.index[1]:select({ s.number, PINNED }, { limit = 1 })[1]
end

function held(s)
    return s.count[HOLDS] + s.count[PINNED] + s.count[ASKED]
end

-- The events of a grant, the oldest first.
function events_of(s, task, grant)
    return S.event.index[3]:select({ s.number, task, grant })
end

function find_event(s, task, grant, kind)
    for _, event in ipairs(events_of(s, task, grant)) do
        if event[5] == kind then
            return event
        end
    end
end

-- Removes an event. Of each grant only the first is handed out, so the next may be now.
function remove_event(s, event)
    S.event:delete(event[1])
    s.events = s.events - 1
    s.changed = true
    local first = S.event.index[3]:select({ s.number, event[3], event[4] }, { limit = 1 })[1]
    if first and first[8] == 1 then
        S.event:update(first[1], { { '=', 8, 0 } })
    end
    return first
end

-- Tells the holder of a grant something, as if it had been told so many times already.
function tell_holder(c, s, task, grant, kind, attempts)
    local id = read_meta('event') or 0
    write_meta('event', id + 1)
    local behind = events_of(s, task, grant)[1] and 1 or 0
    S.event:insert({ id, s.number, task, grant, kind, attempts or 0, c.now, behind })
    s.events = s.events + 1
    s.changed = true
    note_news(c, s)
    told_until(c, c.now)
end

-- Whether nobody can have heard of a grant yet.
function is_untold(s, task, grant)
    local acquired = find_event(s, task, grant, 'acquired')
    return acquired ~= nil and acquired[6] == 0
end

-- Removes what was still to be said about a grant. Answers whether its holder may have heard of it.
function forget_events(s, task, grant)
    local untold = is_untold(s, task, grant)
    for _, event in ipairs(events_of(s, task, grant)) do
        remove_event(s, event)
    end
    return not untold
end

-- Events that were due by this moment are known to those who wait for events. It is no more than a hint, and in no space: what is
-- due again writes nothing into the log.
local told = 0

function told_until(c, at)
    c.told = math.max(c.told or 0, at)
end

-- What a call told is known when it is done.
function confirm_told(c)
    told = math.max(told, c.told or 0)
end

function forget_told()
    told = 0
end

-- The first moment after what is known at which something may be handed out.
local function next_event(c)
    local known = math.max(told, c.told or 0)
    local first = S.event.index[1]:select({ 0, known + 1 }, { iterator = 'GE', limit = 1 })[1]
    return first and first[8] == 0 and moment(first[7]) or FAR
end

-- There may be something to hear of this semaphore.
function note_news(c, s)
    if type(c.news) == 'table' then
        c.news[s.key] = true
    end
end

-- Of which semaphores something may be handed out since this was last asked; of any, where that is much.
function note_due(c)
    local first = { 0, math.max(told, c.told or 0) + 1 }
    local due = S.event.index[1]:select(first, { iterator = 'GE', limit = STEP })
    for _, event in ipairs(due) do
        if event[8] ~= 0 or event[7] > c.now then
            return
        end
        note_news(c, open_semaphore(c, event[2]))
    end
    if #due == STEP then
        c.news = true
    end
end

-- When time alone next changes something, or makes an event due.
function next_semaphore(c)
    local first = S.semaphore.index[2]:min()
    return math.min(first and moment(first[6]) or FAR, next_event(c))
end

function standing(place)
    local lease = given(place[P_LEASE])
    return { place[P_TASK], STATUS[place[P_CLASS]], -tonumber(place[P_RANK]) + 0, place[P_ENQUEUED], place[P_PINNED],
        place[P_NOT_BEFORE], place[P_GRANT], place[P_GRANTED], lease and lease < NEVER and lease or NULL }
end
