-- Imports semaphores from another store, with their entries and events.

-- An entry in the request: which of the semaphores, which of the tubes (or none), the task, and so on.
local N_SEMAPHORE, N_TUBE, N_TASK, N_PRIORITY, N_ENQUEUED, N_NOT_BEFORE, N_GRANT, N_GRANTED, N_LEASE, N_ACK_BY, N_REVOKE_AT, N_DECLINED =
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12

local function optional_moment(value)
    return value == nil and NULL or stamp(moment(value))
end

-- A semaphore without entries.
local function import_semaphore(c, key, options, grants, recheck)
    if find_semaphore(c, key) then
        error("semaphore '" .. key .. "' exists already", 0)
    elseif S.semaphore:len() >= SEMAPHORES_MAX then
        error('too many semaphores', 0)
    end
    -- A semaphore has this many options.
    return sem.create(c, key, whole_options(options, 12), grants, recheck == nil and STORED_NEVER or stamp(moment(recheck)))
end

-- The number of a task here; nil for a task that its tube does not have.
local function number_here(tube, task)
    if not tube then
        return task
    end
    return S.task:get({ tube.number, task }) and gated_task(tube.number, tonumber(task))
end

local function import_entry(s, task, new)
    s.seq = s.seq + 1
    local entry = { s.number, task, WAITING, -tonumber(new[N_PRIORITY]) + 0, s.seq, stamp(moment(new[N_ENQUEUED])),
        given(new[N_GRANT]) or NULL, optional_moment(new[N_GRANTED]), optional_moment(new[N_LEASE]), optional_moment(new[N_ACK_BY]), optional_moment(new[N_REVOKE_AT]), new[N_DECLINED],
        STORED_NEVER, optional_moment(new[N_NOT_BEFORE]) }
    entry[E_CLASS], entry[E_DEADLINE] = class_of(entry), deadline_of(entry)
    s.count[entry[E_CLASS]] = s.count[entry[E_CLASS]] + 1
    s.changed = true
    S.place:insert(entry)
end

-- Events by number. They keep their numbers if none of them is used here yet; their order must stay.
local function import_events(semaphores, tubes, events)
    local next_id = read_meta('event') or 0
    local keep = events[1] ~= nil and events[1][2] >= next_id
    for _, event in ipairs(events) do
        local of, id, in_tube, task, grant, kind, attempts, next_at = unpack(event, 1, 8)
        local s = semaphores[of]
        task = number_here(in_tube ~= nil and tubes[in_tube], task)
        if task then
            next_id = keep and tonumber(id) or next_id
            local blocked = outbox.of_grant(s, task, grant)[1] and 1 or 0
            S.event:insert({ next_id, s.number, task, grant, kind, attempts, stamp(moment(next_at)), blocked })
            next_id = next_id + 1
            s.events, s.changed = s.events + 1, true
            outbox.notify(s)
        end
    end
    if #events > 0 then
        write_meta('event', next_id)
    end
end

-- Semaphores, their entries in the order of arrival, and events. Tubes are those of the same import.
function imports.semaphores(c, new, tubes, entries, events)
    local semaphores = {}
    for place, row in ipairs(new) do
        semaphores[place] = import_semaphore(c, unpack(row, 1, 4))
    end
    for _, row in ipairs(entries) do
        local task = number_here(row[N_TUBE] ~= nil and tubes[row[N_TUBE]], row[N_TASK])
        if task then
            import_entry(semaphores[row[N_SEMAPHORE]], task, row)
        end
    end
    import_events(semaphores, tubes, events)
end

-- Makes tasks without a grant of their tube's semaphore gated. Answers the tasks whose entries do not fit their state.
local function close_gate(tube, s)
    local loose = {}
    for _, task in ipairs(S.task:select({ tube.number })) do
        local id = task[ID]
        local entry = sem.find(s, gated_task(tube.number, id))
        local is_ready = task[STATE] == READY
        if is_ready and not (entry and entry[E_GRANT] ~= nil) then
            move(tube, task, { { '=', STATE, DELAYED }, { '=', FLAG, GATED } })
        end
        if is_ready ~= (entry ~= nil) or entry and entry[E_CLASS] == ASKED then
            loose[#loose + 1] = id
        end
    end
    return loose
end

-- Brings these tubes and their semaphores in line with each other.
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
