-- How tasks go out.

-- Most tasks that are looked at together.
local TAKE_STEP = 200

local function deliver(tube, id, task, how)
    leave(tube, id, task)
    local ending = later(tube.now, how.lease >= 0 and how.lease or task.ttr)
    if tube.options.ttl_kills_taken then
        ending = math.min(ending, task.expires)
    end
    task.state, task.start, task.moment = TAKEN, tube.now, ending
    task.flags = (how.lease >= 0 and EXPLICIT or 0) + (how.session ~= NO_SESSION and HAS_SESSION or 0)
    task.session = how.session
    task.lease = struct.pack('>I8', how.number)
    how.number = how.number + 1
    enter(tube, id, task)
    count(tube, 'take')
end

-- Whether one of these has expired. They leave the order for good, each once in its life, and wait for the tick
-- that removes them.
local function pass_expired(tube, ids)
    local expired = false
    for _, id in ipairs(ids) do
        local task = tube.tasks[id]
        if task.expires <= tube.now then
            note_ready(tube, id, task, false)
            expired = true
        end
    end
    return expired
end

-- What several takes of one call are given is looked up once: the first places of the order, as long as nothing but takes changes them.
local function look(tube, call, want)
    local size = math.min(math.max(want, call.wanted), TAKE_STEP)
    while true do
        flush(tube)
        local places = redis.call('ZRANGE', tube.base .. ':r', 0, size - 1)
        local ids = {}
        for item, place in ipairs(places) do
            ids[item] = string.sub(place, 9)
        end
        load(tube, ids)
        if not pass_expired(tube, ids) then
            return { ids = ids, next = 1, last = #ids < size }
        end
    end
end

local function take_some(tube, how, want, call)
    local taken, bytes = {}, 0
    while #taken < want do
        local window = tube.window
        if not window or (window.next > #window.ids and not window.last) then
            window = look(tube, call, want - #taken)
        end
        local id = window.ids[window.next]
        if not id then
            tube.window = window
            break
        end
        local task = tube.tasks[id]
        bytes = bytes + task.bytes
        if bytes > BYTES_MAX and #taken > 0 then
            tube.window = window
            break
        end
        deliver(tube, id, task, how)
        taken[#taken + 1] = id
        window.next = window.next + 1
        tube.window = window
    end
    return taken
end

-- Most bytes that are read ahead for the takes that follow.
local AHEAD_BYTES = 1048576

-- The bodies of what was taken, by id. Those of the takes that follow come along where they are small.
local function bodies_of(tube, taken)
    local window, ids, bytes = tube.window, {}, 0
    local known = window and window.bodies or {}
    for _, id in ipairs(taken) do
        -- What was put by the same call may not be written yet.
        known[id] = known[id] or tube.b[id] or nil
        if not known[id] then
            ids[#ids + 1] = id
        end
    end
    if #ids == 0 then
        return known
    end
    for place = window and window.next or 1, window and #window.ids or 0 do
        local id = window.ids[place]
        bytes = bytes + tube.tasks[id].bytes
        if bytes > AHEAD_BYTES then
            break
        elseif not tube.b[id] then
            ids[#ids + 1] = id
        end
    end
    known = read_bodies(tube, ids, known)
    if window then
        window.bodies = known
    end
    return known
end

local function take(tube, header, call)
    local how = {}
    local want, alive
    want, how.number, how.lease, alive, how.session = struct.unpack('<I4ddBc16', header, 2)
    if alive == 0 then
        call.wanted = call.wanted - want
        return call:answer('\8')
    end
    local taken = tube.options.paused and {} or take_some(tube, how, want, call)
    call.wanted = call.wanted - want
    call:answer('\0' .. struct.pack('<I4', #taken))
    local bodies = bodies_of(tube, taken)
    for _, id in ipairs(taken) do
        call:answer(view(id, tube.tasks[id], REASON.running))
        call:answer(bodies[id])
    end
end
