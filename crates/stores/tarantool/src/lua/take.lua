-- Takes tasks.

function is_alive(c, session)
    local alive = c.alive[session]
    if alive == nil then
        local row = S.session:get(session)
        alive = row ~= nil and row[3] > c.now
        c.alive[session] = alive
    end
    return alive
end

-- The row of a delivery, completed for each task.
local function new_delivery(c, tube, session, lease, worker)
    return { 0, 0, c.now, session or NULL, tube.number, 0, lease ~= nil, worker }
end

-- Delivers a task; `place` is its row among the takeable ones.
local function deliver(c, tube, task, how, place, expires)
    local row, id, o = how.row, place[3], tube.o
    local ending = how.ending or stamp(later(c.now, tonumber(task[TTR])))
    if o.ttl_kills_taken then
        ending = stamp(math.min(moment(ending), moment(task[EXPIRES])))
    end
    row[D_LEASE], row[D_UNTIL], row[D_ID] = c.lease, ending, id
    c.lease = c.lease + 1
    if how.session then
        S.held:insert({ how.session, tube.number, id })
    end
    if expires and expires < STORED_NEVER then
        S.expiry:delete({ tube.number, expires, id })
    end
    if o.subqueues then
        local key = task[SUBQUEUE]
        S.line:delete({ tube.number, key, place[2], id })
        update_subqueue(tube, key, 1)
    else
        local order = how.order
        order[2], order[3] = place[2], id
        S.ready:delete(order)
        tube.n.takeable = tube.n.takeable - 1
    end
    return S.taken:insert(row)
end

-- The body of a task, joined from its parts.
function body_of(tube, task)
    if task[PARTS] == 0 then
        return task[BODY]
    end
    local parts, meta = {}, nil
    for part = 1, task[PARTS] do
        local row = S.body:get({ tube.number, task[ID], part })
        parts[part] = row[4]
        meta = meta or given(row[5])
    end
    local payload = table.concat(parts)
    return meta and { payload, meta } or payload
end

-- A task in an answer: its stored row, unless its body is stored apart.
local function with_body(tube, task)
    if task[PARTS] == 0 then
        return task
    end
    local row = task:totable()
    row[BODY] = body_of(tube, task)
    return row
end

-- Whether any waiting task of the tube may expire: if not, takes need not check it.
local function may_expire(tube)
    if tube.can_expire == nil then
        tube.can_expire = #S.expiry:select({ tube.number }, { limit = 1 }) > 0
    end
    return tube.can_expire
end

-- Takes at most so many; answers each task followed by its delivery.
local function take_some(c, tube, want, how)
    local taken, count, bytes, key, can_expire = {}, 0, 0, { tube.number, 0 }, may_expire(tube)
    while count < want do
        local places = S.ready:select({ tube.number }, { limit = math.min(want - count, STEP) })
        if #places == 0 then
            break
        end
        for at = 1, #places do
            key[2] = places[at][3]
            local task = S.task:get(key)
            local expires = can_expire and task[EXPIRES]
            if expires and expires <= c.now then
                -- It leaves the order, and waits for the tick that removes it.
                leave_ready(tube, task[PRI], task[ID], task[SUBQUEUE])
                if tube.o.subqueues then
                    -- The next task of its sub-queue may come before the rest.
                    break
                end
            else
                bytes = bytes + task[BYTES]
                if bytes > BATCH_BYTES_MAX and count > 0 then
                    return taken, count, bytes
                end
                -- In order, so that Lua stores them as an array.
                taken[2 * count + 1] = task[PARTS] == 0 and task or with_body(tube, task)
                taken[2 * count + 2] = deliver(c, tube, task, how, places[at], expires)
                count = count + 1
            end
        end
    end
    return taken, count, bytes
end

verbs[5] = function(c, command)
    local tube, want, session = open_tube(c, command[2]), tonumber(command[3]), text(given(command[6]))
    if not tube then
        return refuse('tube_not_found', command[2])
    elseif session and not is_alive(c, session) then
        return refuse('session_unknown', session)
    end
    local lease = number(command[5])
    local how = { session = session, ending = lease and stamp(later(c.now, lease)), order = { tube.number, 0, 0 },
        row = new_delivery(c, tube, session, lease, given(command[7])) }
    local before = tube.n.takeable
    local taken, size, n = {}, 0, tube.n
    if tube.o.rate then
        want = pace.allowed(c, tube, want)
    end
    if not tube.o.paused then
        local bytes
        taken, size, bytes = take_some(c, tube, want, how)
        c.bytes = c.bytes + bytes
    end
    if size > 0 then
        n.ready, n.taken, n.take = n.ready - size, n.taken + size, n.take + size
        mark_changed(c, tube)
        if tube.o.rate then
            pace.spend(tube, size)
        end
    elseif n.takeable ~= before then
        tube.changed = true
    end
    return { REPLY.deliveries, taken }
end
