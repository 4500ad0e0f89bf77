-- Creates, alters, renames and drops tubes.

local EMPTY_LIVE = { next = NEVER, ready = 0, taken = 0, buried = 0, delayed = 0, takeable = 0, done = 0, ack = 0, bury = 0,
    delete = 0, kick = 0, put = 0, release = 0, take = 0, touch = 0, ttl = 0, ttr = 0, delay = 0 }

-- Refuses a queue number that another tube has.
function refuse_queue_num(own, wanted)
    if wanted == nil then
        return nil
    elseif wanted == 0 then
        return refuse('invalid', 'a queue number must be at least 1')
    end
    for _, row in S.tube:pairs() do
        if row[5] == wanted and row[1] ~= own then
            return refuse('queue_num_taken', row[2], wanted)
        end
    end
end

verbs[0] = function(c, command)
    local name, options, if_not_exists = command[2], whole_options(command[3]), command[4]
    if open_tube(c, name) then
        return if_not_exists and { REPLY.created, false } or refuse('tube_exists', name)
    elseif S.tube:len() >= TUBES_MAX then
        return refuse('too_many_tubes', S.tube:len())
    end
    local queue_num, semaphore = given(options[O.queue_num]), given(options[O.semaphore])
    local refusal = refuse_queue_num(nil, queue_num)
    if refusal then
        return refusal
    elseif semaphore and not S.semaphore.index[1]:get(semaphore) then
        return refuse('semaphore_not_found', semaphore)
    end
    refusal = options[O.keep_done] ~= nil and done_tasks.begin()
        or (options[O.retry] ~= nil or options[O.rate] ~= nil) and pace.begin()
    if refusal then
        return refusal
    end
    options[O.queue_num] = NULL
    local tube = { number = free_number(S.tube), name = name, options = options, next_id = 0, queue_num = queue_num }
    tube.n = table.copy(EMPTY_LIVE)
    write_row(tube)
    write_live(tube)
    add_tube(c, S.tube:get(tube.number))
    return { REPLY.created, true }
end

-- A value of nil keeps the option, false removes it.
local function set_option(options, place, value)
    if value ~= nil then
        options[place] = value == false and place ~= O.paused and NULL or value
    end
end

verbs[1] = function(c, command)
    local tube, change = open_tube(c, command[2]), command[3]
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    -- A policy and a limit are in lists, which are empty to remove them.
    local retry, rate = given(change[10]), given(change[11])
    local refusal = number(change[8]) and done_tasks.begin() or (retry and retry[1] or rate and rate[1]) and pace.begin()
    if refusal then
        return refusal
    end
    local had_limit = tube.o.capacity
    local places = { O.paused, O.pri, O.capacity, O.ttl, O.ttr, O.delay, O.attempts_max, O.keep_done, O.keep_done_max }
    -- A tube of an earlier version has fewer options.
    tube.options = whole_options(tube.options, (retry or rate) and O.rate)
    for place, option in ipairs(places) do
        set_option(tube.options, option, change[place])
    end
    if retry then
        tube.options[O.retry] = retry[1] or NULL
    end
    if rate then
        tube.options[O.rate] = rate[1] or NULL
        pace.replace_limit(tube, rate[1])
    end
    tube.o, tube.renewed = read_options(tube.options), true
    mark_changed(c, tube)
    done_tasks.update(c, tube)
    if had_limit and not tube.o.capacity then
        c.unlimited[tube.number] = true
    end
    return { REPLY.tubes, { info(tube) } }
end

verbs[18] = function(c, command)
    local tube, name, queue_num = open_tube(c, command[2]), command[3], given(command[4])
    if not tube then
        return refuse('tube_not_found', command[2])
    elseif name ~= tube.name and open_tube(c, name) then
        return refuse('tube_exists', name)
    elseif tube.queue_num and queue_num and tube.queue_num ~= queue_num then
        -- Queue numbers are permanent.
        return refuse('queue_num_taken', tube.name, tube.queue_num)
    end
    local refusal = refuse_queue_num(tube.number, queue_num)
    if refusal then
        return refusal
    end
    c.by_name[tube.name], c.by_name[name] = nil, tube
    tube.name, tube.queue_num = name, queue_num or tube.queue_num
    write_row(tube)
    return { REPLY.tubes, { info(tube) } }
end

-- Removes all rows of a tube from a space whose primary key begins with its number.
local function clear(space, of)
    local parts = space.index[0].parts
    while true do
        local rows = space:select({ of }, { limit = STEP })
        for _, row in ipairs(rows) do
            local key = {}
            for place, part in ipairs(parts) do
                key[place] = row[part.fieldno]
            end
            space:delete(key)
        end
        if #rows < STEP then
            return
        end
    end
end

-- Removes all tasks; answers the ids of unfinished ones if the tube has a semaphore.
function empty(tube)
    local of, ids = tube.number, {}
    for _, delivery in S.taken:pairs({ of }) do
        if delivery[D_SESSION] ~= nil then
            S.held:delete({ delivery[D_SESSION], of, delivery[D_ID] })
        end
    end
    for place, task in ipairs(tube.o.semaphore and S.task:select({ of }) or {}) do
        ids[place] = task[ID]
    end
    for _, space in ipairs({ S.task, S.body, S.ready, S.taken, S.delayed, S.buried, S.gated, S.expiry, S.line, S.subqueue }) do
        clear(space, of)
    end
    if S.done then
        clear(S.done, of)
        S.kept:delete(of)
        tube.kept, tube.kept_at = 0, nil
    end
    if S.key then
        clear(S.key, of)
        clear(S.ended, of)
        S.ended_count:delete(of)
        tube.ended, tube.cleanup, tube.ended_changed = 0, nil, nil
    end
    local n = tube.n
    n.ready, n.taken, n.buried, n.delayed, n.takeable = 0, 0, 0, 0, 0
    return ids
end

verbs[2] = function(c, command)
    local tube = open_tube(c, command[2])
    if not tube then
        return refuse('tube_not_found', command[2])
    elseif tube.n.taken > 0 then
        return refuse('tube_has_taken', tube.name)
    end
    local ids = empty(tube)
    S.tube:delete(tube.number)
    S.live:delete(tube.number)
    if tube.o.rate then
        S.bucket:delete(tube.number)
    end
    c.by_name[tube.name], c.by_number[tube.number] = nil, nil
    c.changed_tubes[tube.number], c.unlimited[tube.number], c.failed[tube.number] = nil, nil, nil
    regate(c, tube, ids)
    return NOTHING
end

verbs[11] = function(c, command)
    local tube = open_tube(c, command[2])
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    local ids = empty(tube)
    mark_changed(c, tube)
    regate(c, tube, ids)
    return NOTHING
end
