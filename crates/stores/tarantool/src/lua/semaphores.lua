-- The commands of semaphores.

local DEFAULTS = { {{SEMAPHORE_ACTIVE_DEFAULT}}, 900, 0, 0, 0, 60000000, false, false, false, NULL, NULL, NULL }
-- The positions in the options of what a change names, in the order of the change.
local CHANGED = { 1, 2, 3, 4, 5, 10, 6, 7, 11, 12, 8, 9 }
-- The options that a change may remove: there the value is false.
local REMOVABLE = { [10] = true, [11] = true, [12] = true }

-- The options as they are shown: try_release is at most active.
local function shown_options(s)
    local shown = {}
    for place = 1, 12 do
        shown[place] = s.options[place]
    end
    shown[2] = s.config.tail
    return shown
end

local function semaphore_info(s)
    local next_event = S.event.index[2]:select({ s.number, 0 }, { limit = 1 })[1]
    return { s.key, shown_options(s), s.count[WAITING], s.count[COOLING], sem.count_granted(s), s.count[ASKED], s.events,
        next_event and next_event[V_DUE] or NULL }
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
        sem.set_options(s, options)
        rules.admit_waiters(s)
    elseif not s then
        if S.semaphore:len() >= SEMAPHORES_MAX then
            return nil, refuse('too_many_semaphores', SEMAPHORES_MAX)
        end
        s = sem.create(c, key, options, read_meta('grants') or 0, STORED_NEVER)
    end
    return { 0, { semaphore_info(s) } }
end

local function standings(s, tasks)
    local found = {}
    for _, task in ipairs(tasks) do
        local entry = sem.find(s, task)
        if entry then
            found[#found + 1] = sem.standing(entry)
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
        rules.enqueue(s, wish[1], tonumber(wish[2]))
    end
    rules.admit_waiters(s)
    return standings(s, tasks)
end

local function finish_grants(c, command)
    local s, outcomes = find_semaphore(c, command[2]), {}
    if not s then
        return nil, refuse('semaphore_not_found', command[2])
    end
    for place, item in ipairs(command[3]) do
        outcomes[place] = rules.finish_grant(s, item[1], given(item[3]), item[2], number(item[4]))
    end
    rules.admit_waiters(s)
    return { 2, outcomes }
end

local function lookup(c, command)
    local s = find_semaphore(c, command[2])
    if not s then
        return nil, refuse('semaphore_not_found', command[2])
    end
    return standings(s, command[3])
end

local HOLDERS = 0

-- Adds the best of a class behind this priority and number of arrival, at most so many.
local function add_behind(found, s, class, after, count)
    local first = { s.number, class }
    if after then
        first[3], first[4] = -tonumber(after[1]) + 0, after[2]
    end
    for _, entry in ipairs(S.place.index[1]:select(first, { iterator = after and 'GT' or 'EQ', limit = count })) do
        if entry[1] ~= s.number or entry[E_CLASS] ~= class then
            break
        end
        found[#found + 1] = entry
    end
end

local function members(c, command)
    local s, part, count, after = find_semaphore(c, command[2]), command[3], tonumber(command[4]), given(command[5])
    if not s then
        return nil, refuse('semaphore_not_found', command[2])
    end
    local found, shown, last = {}, {}, nil
    for _, class in ipairs(count == 0 and {} or part == HOLDERS and { HOLDING, DECLINED, ASKED } or { WAITING }) do
        add_behind(found, s, class, after, count)
    end
    for at, entry in ipairs(rules.best_entries(found, count)) do
        local row, of, id = sem.standing(entry), tube_task(entry[E_TASK])
        local tube = of and open_number(c, of)
        row[1] = of and id or row[1]
        shown[at] = { tube and tube.name or NULL, row }
        last = entry
    end
    local next = #shown == count and last and { sem.priority(last), last[E_SEQ] } or NULL
    return { 5, shown, next }
end

-- The name of a tube that uses a semaphore.
local function tube_using(key)
    for _, row in S.tube:pairs() do
        if row[3][O.semaphore] == key then
            return row[2]
        end
    end
end

-- Removes a semaphore with all entries. Refused while a tube uses it: its tasks would never be ready again.
local function drop(c, command)
    local key, force = command[2], command[3]
    local s = find_semaphore(c, key)
    if not s then
        return nil, refuse('semaphore_not_found', key)
    end
    local tube = tube_using(key)
    if tube then
        return nil, refuse('semaphore_has_tube', key, tube)
    end
    local n = s.count
    if not force and n[WAITING] + n[COOLING] + n[HOLDING] + n[DECLINED] + n[ASKED] > 0 then
        return nil, refuse('semaphore_in_use', key)
    end
    for _, event in ipairs(S.event.index[3]:select({ s.number })) do
        S.event:delete(event[V_NUMBER])
    end
    for _, entry in ipairs(S.place:select({ s.number })) do
        S.place:delete({ s.number, entry[E_TASK] })
    end
    write_meta('grants', math.max(read_meta('grants') or 0, s.grants))
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
        found[#found + 1] = semaphore_info(sem.open(c, row[1]))
    end
    return { 0, found }
end

local function deliver_event(c, event)
    local attempts, next_at = rules.next_delivery(c.now, event[V_ATTEMPTS])
    S.event:update(event[V_NUMBER], { { '=', V_ATTEMPTS, attempts }, { '=', V_DUE, stamp(next_at) } })
    local of, id = tube_task(event[V_TASK])
    local tube = of and open_number(c, of)
    return { event[V_NUMBER], sem.open(c, event[V_SEMAPHORE]).key, of and id or event[V_TASK], event[V_GRANT], event[V_KIND], attempts,
        tube and tube.name or NULL }
end

local function fetch(c, command)
    local count, key, delivered = tonumber(command[2]), given(command[4]), {}
    local s = key and find_semaphore(c, key)
    if key and not s then
        return nil, refuse('semaphore_not_found', key)
    end
    local order, first = S.event.index[1], { 0 }
    if s then
        order, first = S.event.index[2], { s.number, 0 }
    end
    for _, event in ipairs(order:select(first, { limit = count })) do
        if event[V_DUE] > c.now then
            break
        end
        delivered[#delivered + 1] = deliver_event(c, event)
    end
    return { 3, delivered }
end

local function acknowledge(c, command)
    local count = 0
    for _, id in ipairs(command[2]) do
        local event = S.event:get(id)
        if event then
            rules.acknowledge(sem.open(c, event[V_SEMAPHORE]), event)
            count = count + 1
        end
    end
    return { 4, count }
end

local VERBS = { [0] = configure, enqueue, finish_grants, lookup, list, fetch, acknowledge, members, drop }

verbs[17] = function(c, command)
    local asked = command[2]
    local answer, refusal = VERBS[asked[1]](c, asked)
    if refusal then
        return refusal
    end
    follow(c)
    return { REPLY.semaphore, answer }
end

-- Applies deadlines in at most so many semaphores; answers in how many.
function tick_semaphores(c, limit)
    local ticked = 0
    flush_semaphores(c)
    while ticked < limit do
        local first = S.semaphore.index[2]:min()
        if not first or first[6] > c.now then
            break
        end
        local s = sem.open(c, first[1])
        for _, entry in ipairs(S.place.index[2]:select({ s.number }, { limit = {{BATCH_TASKS_MAX}} })) do
            if entry[E_DEADLINE] > c.now then
                break
            end
            rules.apply_deadline(s, entry)
        end
        rules.admit_waiters(s)
        flush_semaphores(c)
        ticked = ticked + 1
    end
    outbox.note_due(c)
    outbox.announce(c, c.now)
    follow(c)
    return ticked
end
