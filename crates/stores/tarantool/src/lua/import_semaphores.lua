-- Semaphores that come from another store, with all who stand there and what they are to be told.

local SEMAPHORES_MAX = 100000
-- Where somebody stands, as it travels: which of the semaphores, which of the tubes (or none), the task, and so on.
local N_SEMAPHORE, N_TUBE, N_TASK, N_PRIORITY, N_ENQUEUED, N_NOT_BEFORE, N_GRANT, N_GRANTED, N_LEASE, N_ACK_BY, N_REVOKE_AT, N_PINNED =
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12

local function kept(value)
    return value == nil and NULL or stamp(moment(value))
end

-- One in which nobody stands yet.
local function import_semaphore(c, key, options, grant_seq, recheck)
    local number = free_semaphore_number()
    if find_semaphore(c, key) then
        error("semaphore '" .. key .. "' is there already", 0)
    elseif S.semaphore:len() >= SEMAPHORES_MAX then
        error('there are too many semaphores', 0)
    end
    recheck = recheck == nil and NEVER or stamp(moment(recheck))
    S.semaphore:insert({ number, key, whole_options(options), grant_seq, recheck, NEVER, 0, 0, 0, 0, 0, 0, 0 })
    return open_semaphore(c, number)
end

-- The number of a task here; nothing for one of a tube that does not have it.
local function number_here(tube, task)
    if not tube then
        return task
    end
    return S.task:get({ tube.number, task }) and gated_task(tube.number, tonumber(task))
end

local function import_place(s, task, new)
    s.seq = s.seq + 1
    local place = { s.number, task, WAIT, -tonumber(new[N_PRIORITY]) + 0, s.seq, stamp(moment(new[N_ENQUEUED])),
        given(new[N_GRANT]) or NULL, kept(new[N_GRANTED]), kept(new[N_LEASE]), kept(new[N_ACK_BY]), kept(new[N_REVOKE_AT]), new[N_PINNED],
        NEVER, kept(new[N_NOT_BEFORE]) }
    place[P_CLASS], place[P_DEADLINE] = class_of(place), deadline_of(place)
    s.count[place[P_CLASS]] = s.count[place[P_CLASS]] + 1
    s.changed = true
    S.place:insert(place)
end

-- Events by number. They keep their numbers if none of them was given here yet: their order must stay.
local function import_events(c, semaphores, tubes, events)
    local next_id = read_meta('event') or 0
    local keep = events[1] ~= nil and events[1][2] >= next_id
    for _, event in ipairs(events) do
        local of, id, in_tube, task, grant, kind, attempts, next_at = unpack(event, 1, 8)
        local s = semaphores[of]
        task = number_here(in_tube ~= nil and tubes[in_tube], task)
        if task then
            next_id = keep and tonumber(id) or next_id
            local behind = events_of(s, task, grant)[1] and 1 or 0
            S.event:insert({ next_id, s.number, task, grant, kind, attempts, stamp(moment(next_at)), behind })
            next_id = next_id + 1
            s.events, s.changed = s.events + 1, true
            note_news(c, s)
        end
    end
    if #events > 0 then
        write_meta('event', next_id)
    end
end

-- Semaphores, who stands there in the order of arrival, and events. Tubes are those that came along.
function imports.semaphores(c, new, tubes, places, events)
    local semaphores = {}
    for place, row in ipairs(new) do
        semaphores[place] = import_semaphore(c, unpack(row, 1, 4))
    end
    for _, row in ipairs(places) do
        local task = number_here(row[N_TUBE] ~= nil and tubes[row[N_TUBE]], row[N_TASK])
        if task then
            import_place(semaphores[row[N_SEMAPHORE]], task, row)
        end
    end
    import_events(c, semaphores, tubes, events)
end

-- Who does not hold a grant of the semaphore before its tube is not ready. Answers those of which the semaphore knows nothing, or more
-- than it should.
local function close_gate(tube, s)
    local loose = {}
    for _, task in ipairs(S.task:select({ tube.number })) do
        local id = task[ID]
        local place = place_of(s, gated_task(tube.number, id))
        local is_ready = task[STATE] == READY
        if is_ready and not (place and place[P_GRANT] ~= nil) then
            move(tube, task, { { '=', STATE, DELAYED }, { '=', FLAG, GATED } })
        end
        if is_ready ~= (place ~= nil) or place and place[P_CLASS] == ASKED then
            loose[#loose + 1] = id
        end
    end
    return loose
end

-- Brings all of these tubes and their semaphores together.
function imports.gates(c, tubes)
    local loose = {}
    for place, tube in ipairs(tubes) do
        local s = tube.o.semaphore and find_semaphore(c, tube.o.semaphore)
        if tube.o.semaphore and not s then
            error("semaphore '" .. tube.o.semaphore .. "' does not exist", 0)
        end
        loose[place] = s and close_gate(tube, s) or {}
    end
    for place, tube in ipairs(tubes) do
        regate(c, tube, loose[place])
    end
end
