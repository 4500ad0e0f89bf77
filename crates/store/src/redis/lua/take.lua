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

local function take_some(tube, how, want)
    local taken, bytes = {}, 0
    while #taken < want do
        flush(tube)
        local places = redis.call('ZRANGE', tube.base .. ':r', 0, math.min(want - #taken, TAKE_STEP) - 1)
        local ids = {}
        for item, place in ipairs(places) do
            ids[item] = string.sub(place, 9)
        end
        if #ids == 0 then
            break
        end
        load(tube, ids)
        if not pass_expired(tube, ids) then
            for _, id in ipairs(ids) do
                local task = tube.tasks[id]
                bytes = bytes + task.bytes
                if bytes > BYTES_MAX and #taken > 0 then
                    return taken
                end
                deliver(tube, id, task, how)
                taken[#taken + 1] = id
            end
        end
    end
    return taken
end

local function take(tube, header, call)
    local how = {}
    local want, alive
    want, how.number, how.lease, alive, how.session = struct.unpack('<I4ddBc16', header, 2)
    if alive == 0 then
        return call:answer('\8')
    end
    local taken = tube.options.paused and {} or take_some(tube, how, want)
    call:answer('\0' .. struct.pack('<I4', #taken))
    -- Bodies that were put by the same call may not be written yet.
    flush(tube)
    for item, body in ipairs(bodies(tube, taken)) do
        local id = taken[item]
        call:answer(view(id, tube.tasks[id], REASON.running))
        call:answer(body)
    end
end
