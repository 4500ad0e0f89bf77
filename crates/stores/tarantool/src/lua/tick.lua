-- Applies due deadlines.

-- The task with the earliest due deadline of a tube, and the order that it is in.
local function first_due(c, tube)
    local at, id, space
    for _, order in ipairs({ S.taken.index[1], S.delayed, S.expiry }) do
        local first = order:select({ tube.number }, { limit = 1 })[1]
        if first then
            local when, which = first[2], order == S.taken.index[1] and first[D_ID] or first[3]
            if not at or when < at or when == at and which < id then
                at, id, space = when, which, order
            end
        end
    end
    if at and at <= c.now then
        return id, space
    end
end

local function tick_tube(c, tube, limit, seed)
    local moved, failed = {}, 0
    while #moved < limit do
        local id, order = first_due(c, tube)
        if not id then
            break
        end
        local task = S.task:get({ tube.number, id })
        if order == S.delayed then
            -- DUE stays: the task is ready since then.
            move(tube, task, { { '=', STATE, READY } })
            tube.n.delay = tube.n.delay + 1
        elseif order == S.expiry then
            expire(c, tube, task)
        else
            local retry = tube.o.retry
            local delay = retry and retry.lost and pace.delay_of(tube, task, seed) or 0
            give_back(c, tube, task, delivery_of(tube, id), delay, true, 'ttr', ERRORS.lease_expired)
            failed = failed + 1
        end
        moved[#moved + 1] = id
    end
    if #moved == 0 and tube.o.rate then
        pace.touch(tube)
    end
    mark_changed(c, tube, failed)
    regate(c, tube, moved)
    flush(tube)
    return #moved
end

-- For about so many tasks. Answers how many tasks, done ones too, keys, sessions and semaphores changed.
verbs[16] = function(c, command)
    local limit, seed, moved = tonumber(command[2]), number(command[3]) or 0, 0
    flush_all(c)
    while moved < limit do
        local session = S.session.index[1]:min()
        if session and session[3] <= c.now then
            moved = moved + 1 + end_session(c, session[1])
            flush_all(c)
        else
            local first = S.live.index[1]:min()
            if not first or first[2] > c.now then
                break
            end
            moved = moved + tick_tube(c, open_number(c, first[1]), limit - moved, seed)
            flush_all(c)
        end
    end
    moved = moved + done_tasks.tick(c, limit - moved)
    moved = moved + keys.tick(c, limit - moved)
    moved = moved + tick_semaphores(c, math.max(limit - moved, 0))
    return { REPLY.ticked, moved }
end
