-- Takes tasks.

-- Where the tails of deliveries are in the header: one for all, or one for each of several takes; each with its length before it.
local TAILS_AT = 40

-- Reads the tails of deliveries, which name the workers.
local function read_tails(header, how)
    local tails, place = {}, TAILS_AT
    while place <= #header do
        local last = place + string.byte(header, place)
        tails[#tails + 1] = string.sub(header, place + 1, last)
        place = last + 1
    end
    if #tails > 1 then
        how.tails = tails
    else
        how.tail = tails[1]
    end
end

-- The worker that the tail of a delivery names.
local function worker_of(tail)
    local size = string.byte(tail, 2)
    return size > 0 and string.sub(tail, 3, 2 + size) or nil
end

-- Delivers a task, which is the one of this number in this take.
local function deliver(tube, id, task, how, place)
    leave(tube, id, task)
    local ending = later(tube.now, how.lease >= 0 and how.lease or task.ttr)
    if tube.options.ttl_kills_taken then
        ending = math.min(ending, task.expires)
    end
    task.state, task.start, task.moment = TAKEN, tube.now, ending
    task.flags = (how.lease >= 0 and EXPLICIT or 0) + (how.session ~= NO_SESSION and HAS_SESSION or 0)
    task.session, task.worker = how.session, worker_of(how.tails and how.tails[place] or how.tail)
    task.lease = struct.pack('>I8', how.number)
    how.number = how.number + 1
    enter(tube, id, task)
    count(tube, 'take')
end

-- Removes expired tasks from the order of takeable ones, where they wait no more until a tick removes them. Answers whether there were any.
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

-- Reads the first tasks of the order for all takes of a call, as long as only takes change it.
local function read_window(tube, call, want)
    local size = math.min(math.max(want, call.wanted), TAKE_STEP)
    while true do
        flush(tube)
        local places = redis.call('ZRANGE', tube.base .. ':r', 0, size - 1)
        local ids = {}
        for item, place in ipairs(places) do
            ids[item] = string.sub(place, 9)
        end
        load(tube, ids, true)
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
            window = read_window(tube, call, want - #taken)
        end
        local id = window.ids[window.next]
        if not id then
            tube.window = window
            break
        end
        local task = tube.tasks[id]
        bytes = bytes + task.bytes
        if bytes > BATCH_BYTES_MAX and #taken > 0 and how.singles == 0 then
            tube.window = window
            break
        end
        deliver(tube, id, task, how, #taken + 1)
        taken[#taken + 1] = id
        window.next = window.next + 1
        tube.window = window
    end
    return taken
end

function verbs.take(tube, header, call)
    -- `singles` says whether these are takes of one task each.
    local how = { number = 0, lease = 0, session = '', singles = 0, flags = 0, taken = 0, bytes = 0, tail = FILLING }
    local want, alive
    want, how.number, how.lease, alive, how.session, how.singles = struct.unpack('<I4ddBc16B', header, 2)
    if alive == 0 then
        call.wanted = call.wanted - want
        return call:answer('\8')
    end
    if #header >= TAILS_AT then
        read_tails(header, how)
    end
    local most = tube.options.rate and pace.allowed(tube, want) or want
    if tube.options.plain and not tube.options.paused then
        plain.take(tube, call, how, most)
        call.wanted = call.wanted - want
        if tube.options.rate then
            pace.spend(tube, how.taken)
        end
        return
    end
    local taken = tube.options.paused and {} or take_some(tube, how, most, call)
    call.wanted = call.wanted - want
    if tube.options.rate then
        pace.spend(tube, #taken)
    end
    local shown = new_shown()
    for place, id in ipairs(taken) do
        show(tube, shown, id, REASONS.running)
        shown.heads[place] = id .. encode_delivery(tube.tasks[id])
    end
    answer_shown(call, '\0' .. struct.pack('<I4', #taken), shown)
end
