-- How tasks go out.

function is_alive(c, session)
    local alive = c.alive[session]
    if alive == nil then
        local row = S.session:get(session)
        alive = row ~= nil and row[3] > c.now
        c.alive[session] = alive
    end
    return alive
end

-- The row of a delivery, to be filled in for each task.
local function new_delivery(c, tube, session, lease)
    return { 0, 0, c.now, session or NULL, tube.number, 0, lease ~= nil }
end

local function deliver(c, tube, task, how)
    local row, id = how.row, task[ID]
    local ending = later(c.now, how.lease or tonumber(task[TTR]))
    if tube.o.ttl_kills_taken then
        ending = math.min(ending, moment(task[EXPIRES]))
    end
    row[D_LEASE], row[D_UNTIL], row[D_ID] = c.lease, stamp(ending), id
    c.lease = c.lease + 1
    if how.session then
        S.held:insert({ how.session, tube.number, id })
    end
    if task[EXPIRES] < NEVER then
        S.expiry:delete({ tube.number, task[EXPIRES], id })
    end
    if tube.o.subqueues then
        local key = task[SUBQUEUE]
        S.line:delete({ tube.number, key, task[PRI], id })
        settle_subqueue(tube, key, 1)
    else
        S.ready:delete({ tube.number, task[PRI], id })
        tube.n.takeable = tube.n.takeable - 1
    end
    return S.taken:insert(row)
end

-- The bytes of a body, together.
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

-- A task in an answer: as it lies there, unless its body lies apart.
local function with_body(tube, task)
    if task[PARTS] == 0 then
        return task
    end
    local row = task:totable()
    row[BODY] = body_of(tube, task)
    return row
end

-- Takes at most so many; answers each with its delivery.
local function take_some(c, tube, want, how)
    local taken, bytes = {}, 0
    while #taken < want do
        local places = S.ready:select({ tube.number }, { limit = math.min(want - #taken, STEP) })
        if #places == 0 then
            return taken
        end
        for _, place in ipairs(places) do
            local task = S.task:get({ tube.number, place[3] })
            if task[EXPIRES] <= c.now then
                -- It leaves the order for good, and waits for the tick that removes it.
                leave_ready(tube, task[PRI], task[ID], task[SUBQUEUE])
                if tube.o.subqueues then
                    -- What stands for its sub-queue now may come before the rest.
                    break
                end
            else
                bytes = bytes + task[BYTES]
                if bytes > BYTES_MAX and #taken > 0 then
                    return taken
                end
                taken[#taken + 1] = { with_body(tube, task), deliver(c, tube, task, how) }
            end
        end
    end
    return taken
end

verbs[5] = function(c, command)
    local tube, want, session = open_tube(c, command[2]), tonumber(command[3]), given(command[6])
    if not tube then
        return refuse('tube_not_found', command[2])
    elseif session and not is_alive(c, session) then
        return refuse('session_unknown', session)
    end
    local how = { lease = number(command[5]), session = session }
    how.row = new_delivery(c, tube, session, how.lease)
    local before = tube.n.takeable
    local taken = tube.o.paused and {} or take_some(c, tube, want, how)
    local n, size = tube.n, #taken
    if size > 0 then
        n.ready, n.taken, n.take = n.ready - size, n.taken + size, n.take + size
        settle(c, tube)
    elseif n.takeable ~= before then
        tube.changed = true
    end
    return { REPLY.deliveries, taken }
end
