-- Ends deliveries (ack, release, bury), touches them, and runs other commands that change tasks.

local DONE_ITEM, STALE_ITEM, MISSING_ITEM = { 0 }, { 1 }, { 2 }
-- A delivery that failed ends in this way: the item has the error, then the delay, then the random number if the retry policy decides; then
-- the delay is that of a tube without a policy. Without a delay the task is buried.
local FAIL = 4

-- Whether a task is taken and the caller holds it: a number is its lease, a string its session, nil any caller.
local function is_held(c, delivery, holder)
    if not delivery then
        return false
    elseif holder ~= nil then
        if type(holder) == 'string' then
            if delivery[D_SESSION] ~= holder or not is_alive(c, holder) then
                return false
            end
        elseif delivery[D_LEASE] ~= holder then
            return false
        end
    end
    return delivery[D_UNTIL] > c.now
end

-- Adds a failure at this moment to the changes of a task.
local function add_failure(c, task, delivery, at, why, changes)
    local failures = with_failure(c, task, delivery, at, why)
    if failures then
        changes[#changes + 1] = { '=', FAILURES, failures }
    end
end

-- Ends a delivery without ack: the task is ready again, or delayed, or buried because its attempts are used up. `why` is the error of a
-- delivery that failed.
function give_back(c, tube, task, delivery, delay, counted, call, why)
    local state, flag, due, used_up = READY, PLAIN, task[DUE], false
    local attempts, previous, expires = task[ATTEMPTS], task[PREVIOUS], task[EXPIRES]
    if counted then
        -- A task whose time to run is over is ready since then, not since the tick that notices it.
        previous, due = since_of(task), call == 'ttr' and delivery[D_UNTIL] or c.now
        attempts, used_up = count_attempt(attempts, given(task[OWN_ATTEMPTS]) or tube.o.attempts_max)
    end
    if used_up then
        state, flag, due = BURIED, DEAD_LETTER, NULL
        tube.n.bury = tube.n.bury + 1
    elseif delay > 0 then
        state, due = DELAYED, stamp(later(c.now, delay))
        expires = stamp(later(moment(expires), delay))
    end
    local changes = { { '=', STATE, state }, { '=', EXPIRES, expires }, { '=', ATTEMPTS, attempts }, { '=', PREVIOUS, previous },
        { '=', DUE, due }, { '=', FLAG, flag } }
    if why then
        add_failure(c, task, delivery, call == 'ttr' and moment(delivery[D_UNTIL]) or c.now, why, changes)
    end
    undeliver(tube, delivery, task[SUBQUEUE])
    task = S.task:update({ tube.number, task[ID] }, changes)
    enter(tube, task)
    tube.n[call] = tube.n[call] + 1
    return task
end

local function bury(c, tube, task, delivery, why)
    if not delivery and task[STATE] == BURIED then
        return task
    end
    tube.n.bury = tube.n.bury + 1
    local changes = { { '=', STATE, BURIED }, { '=', DUE, NULL }, { '=', FLAG, PLAIN } }
    if why then
        add_failure(c, task, delivery, c.now, why, changes)
    end
    if not delivery then
        return move(tube, task, changes)
    end
    undeliver(tube, delivery, task[SUBQUEUE])
    task = S.task:update({ tube.number, task[ID] }, changes)
    enter(tube, task)
    return task
end

local function touch(tube, task, delivery, more)
    if more == 0 then
        return task, delivery
    end
    local key = { tube.number, task[ID] }
    local ending = later(moment(delivery[D_UNTIL]), more)
    delivery = S.taken:update(key, { { '=', D_UNTIL, stamp(ending) } })
    task = S.task:update(key, { { '=', EXPIRES, stamp(later(moment(task[EXPIRES]), more)) },
        { '=', TTR, math.min(tonumber(task[TTR]) + more, FOREVER) } })
    tube.n.touch = tube.n.touch + 1
    return task, delivery
end

-- Acks a task in as few steps as possible.
local function ack(c, tube, key, delivery, result)
    local n, task, session = tube.n, S.task:delete(key), delivery[D_SESSION]
    S.taken:delete(key)
    n.taken, n.done, n.ack = n.taken - 1, n.done + 1, n.ack + 1
    if session ~= nil then
        S.held:delete({ session, key[1], key[2] })
    end
    if tube.o.subqueues then
        update_subqueue(tube, task[SUBQUEUE], -1)
    end
    if tube.o.keep_done then
        done_tasks.add(c, tube, task, delivery, result)
    elseif task[PARTS] > 0 then
        forget_body(tube, task)
    end
    if task[KEY] ~= nil then
        keys.release(c, tube, task, delivery)
    end
end

-- Ends a delivery that failed: the task is tried again after the delay; without one it is buried.
local function fail(c, tube, task, delivery, why, delay)
    if not delay then
        return bury(c, tube, task, delivery, why)
    end
    return give_back(c, tube, task, delivery, tube.o.times and delay or 0, true, 'release', why)
end

-- Whether an item buries its task, which needs no delivery.
local function buries(tube, item)
    return item[2] == BURY or item[2] == FAIL and item[5] == nil
end

-- The delay before the next attempt of a failed task; nil if it is buried.
local function retry_after(tube, task, item)
    if item[6] ~= nil and tube.o.retry then
        return pace.delay_of(tube, task, item[6])
    end
    return number(item[5])
end

-- Finishes one item and answers the outcome, with the task if it is to be shown.
local function finish_one(c, tube, item, show, key)
    key[2] = item[1]
    local verb, holder, delivery = item[2], text(item[3]), S.taken:get(key)
    if verb == ACK and not show and is_held(c, delivery, holder) then
        ack(c, tube, key, delivery, item[4])
        return DONE_ITEM
    end
    local task = S.task:get(key)
    if not task then
        return MISSING_ITEM
    elseif not is_held(c, delivery, holder) and not (holder == nil and buries(tube, item)) then
        return STALE_ITEM
    end
    local body = show and body_of(tube, task)
    if verb == ACK then
        local seen = view_done(c, tube, task, delivery, body)
        remove(c, tube, task, delivery, tube.o.keep_done)
        tube.n.ack = tube.n.ack + 1
        if tube.o.keep_done then
            done_tasks.add(c, tube, task, delivery, item[4])
        end
        return { 0, seen }
    elseif verb == RELEASE then
        task = give_back(c, tube, task, delivery, tube.o.times and tonumber(item[4]) or 0, item[5], 'release')
        delivery = nil
    elseif verb == BURY then
        task = bury(c, tube, task, delivery)
        delivery = nil
    elseif verb == FAIL then
        task = fail(c, tube, task, delivery, item[4], retry_after(tube, task, item))
        delivery = nil
    else
        task, delivery = touch(tube, task, delivery, tonumber(item[4]))
    end
    return show and { 0, view(c, tube, task, delivery, body) } or DONE_ITEM
end

-- Refuses a touch that is not supported: a kind without times has none, except for deliveries with a given lease time.
local function refuse_touch(c, tube, items)
    for _, item in ipairs(items) do
        if item[2] == TOUCH then
            local delivery = S.taken:get({ tube.number, item[1] })
            if is_held(c, delivery, text(item[3])) and not delivery[D_EXPLICIT] then
                return refuse('unsupported', tube.o.kind, 'touch')
            end
        end
    end
end

local function ids_of(items)
    local ids = {}
    for place, item in ipairs(items) do
        ids[place] = item[1]
    end
    return ids
end

-- Shows tasks again that were ready before the semaphore decided.
local function show_gated(c, tube, outcomes)
    for _, outcome in ipairs(outcomes) do
        local seen = outcome[2]
        if seen and seen[STATE] == READY then
            local task = S.task:get({ tube.number, seen[ID] })
            outcome[2] = view(c, tube, task, nil, seen[BODY])
        end
    end
end

verbs[6] = function(c, command)
    local tube, items, show = open_tube(c, command[2]), command[3], command[4]
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    local refusal = show and shown_tasks.refuse(c, tube, ids_of(items)) or not tube.o.times and refuse_touch(c, tube, items)
    if refusal then
        return refusal
    end
    local outcomes, key, all_done = {}, { tube.number, 0 }, true
    for place = 1, #items do
        local outcome = finish_one(c, tube, items[place], show, key)
        outcomes[place], all_done = outcome, all_done and outcome == DONE_ITEM
        c.follows = c.follows or outcome[1] ~= 0
    end
    mark_changed(c, tube)
    if tube.o.semaphore then
        local done = {}
        for place, item in ipairs(items) do
            if outcomes[place][1] == 0 then
                done[#done + 1] = item[1]
            end
        end
        regate(c, tube, done)
        show_gated(c, tube, outcomes)
    end
    return all_done and { REPLY.all_done, #items } or { REPLY.finished, outcomes }
end

verbs[8] = function(c, command)
    local tube, ids, show = open_tube(c, command[2]), command[3], command[4]
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    local refusal = show and shown_tasks.refuse(c, tube, ids)
    if refusal then
        return refusal
    end
    local outcomes = {}
    for place, id in ipairs(ids) do
        local task = S.task:get({ tube.number, id })
        local done = not task and done_tasks.get(c, tube, id)
        if done then
            outcomes[place] = show and { 0, done_tasks.view(c, tube, done) } or DONE_ITEM
            done_tasks.remove(c, tube, done)
            tube.n.delete = tube.n.delete + 1
        elseif not task then
            outcomes[place], c.follows = MISSING_ITEM, true
        else
            local delivery = delivery_of(tube, id)
            outcomes[place] = show and { 0, view_done(c, tube, task, delivery, body_of(tube, task)) } or DONE_ITEM
            remove(c, tube, task, delivery)
            tube.n.delete = tube.n.delete + 1
        end
    end
    mark_changed(c, tube)
    regate(c, tube, ids)
    return { REPLY.finished, outcomes }
end

-- Makes a buried task ready.
local function kick(c, tube, task, reset_attempts)
    local changes = { { '=', STATE, READY }, { '=', FLAG, PLAIN }, { '=', DUE, c.now } }
    if reset_attempts then
        changes[4] = { '=', ATTEMPTS, 0 }
    end
    move(tube, task, changes)
    tube.n.kick = tube.n.kick + 1
end

verbs[7] = function(c, command)
    local tube, limit, kicked = open_tube(c, command[2]), tonumber(command[3]), {}
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    while #kicked < limit do
        local places = S.buried:select({ tube.number }, { limit = math.min(limit - #kicked, STEP) })
        if #places == 0 then
            break
        end
        for _, place in ipairs(places) do
            kick(c, tube, S.task:get({ tube.number, place[3] }), false)
            kicked[#kicked + 1] = place[3]
        end
    end
    mark_changed(c, tube)
    regate(c, tube, kicked)
    return { REPLY.kicked, #kicked }
end

verbs[20] = function(c, command)
    local tube, ids, reset_attempts = open_tube(c, command[2]), command[3], command[4]
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    local outcomes, kicked = {}, {}
    for place, id in ipairs(ids) do
        local task = S.task:get({ tube.number, id })
        if task and task[STATE] == BURIED then
            kick(c, tube, task, reset_attempts)
            outcomes[place], kicked[#kicked + 1] = DONE_ITEM, id
        else
            outcomes[place], c.follows = task and STALE_ITEM or MISSING_ITEM, true
        end
    end
    mark_changed(c, tube)
    regate(c, tube, kicked)
    return { REPLY.finished, outcomes }
end

-- Gives back these deliveries; answers the ids of their tasks. `why` is the error if they failed.
function give_back_all(c, tube, all, counted, why)
    local ids = {}
    for place, delivery in ipairs(all) do
        local task = S.task:get({ tube.number, delivery[D_ID] })
        give_back(c, tube, task, delivery, 0, counted, 'release', why)
        ids[place] = delivery[D_ID]
    end
    mark_changed(c, tube, why and #ids)
    return ids
end

verbs[12] = function(c, command)
    local tube = open_tube(c, command[2])
    if not tube then
        return refuse('tube_not_found', command[2])
    end
    local ids = give_back_all(c, tube, S.taken:select({ tube.number }), true)
    regate(c, tube, ids)
    return NOTHING
end
