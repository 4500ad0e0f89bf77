-- Puts tasks.

local GIVES_PRI = 1
-- The position of the options of the first task in the header.
local PUT_ITEMS_AT = 7

local read_new

do
    local GIVES_TTL, GIVES_TTR, GIVES_DELAY, GIVES_AT, GIVES_SUBQUEUE, GIVES_OWN, GIVES_EXTENSION = 2, 4, 8, 16, 32, 64, 128

    -- The options of one task at this position of the header, and the position of the next one.
    function read_new(header, place)
        local given, new = struct.unpack('B', header, place), {}
        place = place + 1
        if given == 0 then
            return new, place
        end
        if has(given, GIVES_PRI) then
            new.pri, place = struct.unpack('c8', header, place)
        end
        if has(given, GIVES_TTL) then
            new.ttl, place = struct.unpack('<d', header, place)
        end
        if has(given, GIVES_TTR) then
            new.ttr, place = struct.unpack('<d', header, place)
        end
        if has(given, GIVES_DELAY) then
            new.delay, place = struct.unpack('<d', header, place)
        end
        if has(given, GIVES_AT) then
            new.at, place = struct.unpack('<d', header, place)
        end
        if has(given, GIVES_SUBQUEUE) then
            new.subqueue, place = struct.unpack('<I2c0', header, place)
        end
        if has(given, GIVES_OWN) then
            new.own, place = struct.unpack('c8', header, place)
        end
        if given >= GIVES_EXTENSION then
            -- Whether it replaces the holder of its key, and the extension of its record (keys.lua).
            new.replaces = string.byte(header, place) == 1
            place = keyring.read_extension(new, header, place + 1)
        end
        return new, place
    end
end

local function or_given(value, otherwise)
    if otherwise >= 0 then
        return value or otherwise
    end
    return value
end

local function make_task(tube, new, body)
    local o, now = tube.options, tube.now
    local bytes = #body - 4
    local task = { state = READY, flags = 0, attempts = 0, bytes = bytes, pri = NO_PRI, created = now, expires = NEVER,
        ttr = FOREVER, previous = NEVER, moment = 0, lease = NO_LEASE, start = 0, session = NO_SESSION, own = new.own, most = new.most,
        key = new.key, unique_for = new.unique_for, extension = new.extension,
        subqueue = o.subqueues and '+' .. (new.subqueue or 'nil') or '', body = bytes <= INLINE_MAX and body or nil }
    if not o.times then
        return task
    end
    local due
    task.pri = new.pri or o.pri
    task.ttr, task.expires, due = task_times(now, or_given(new.ttl, o.ttl), or_given(new.ttr, o.ttr), or_given(new.delay, o.delay), new.at)
    if due then
        task.state, task.moment = DELAYED, due
    end
    return task
end

-- Puts tasks one by one into a tube of any kind. Answers their states.
local function put_each(tube, call, header, first, size)
    local id, states, names, place = tube.numbers[NEXT_ID], {}, {}, PUT_ITEMS_AT
    for item = 1, size do
        local new, body = nil, call.args[first + item - 1]
        new, place = read_new(header, place)
        local task, name = make_task(tube, new, body), struct.pack('>I8', id + item - 1)
        enter(tube, name, task)
        if not task.body then
            tube.b[name] = body
        end
        names[item] = name
    end
    gates.regate(tube, names)
    for item, name in ipairs(names) do
        states[item] = tube.tasks[name].state == READY and '\0' or '\2'
    end
    return table.concat(states)
end

-- The header has the number of tasks; whether one has a priority for the semaphore (1), whether these are puts of one task each (2; otherwise
-- all or none are put), and whether one has a key or its own number of attempts (4); and the options of each. The bodies follow the header.
function verbs.put(tube, header, call)
    local size, flags = struct.unpack('<I4B', header, 2)
    local first, singles = call.next, flags % 4 >= 2
    call.next = first + size
    if flags % 2 == 1 and tube.options.semaphore == '' then
        return call:answer('\14')
    end
    if flags >= 4 then
        return keyring.put(tube, call, header, first, size, singles)
    end
    local capacity = tube.options.capacity
    local room = capacity and math.max(capacity - total(tube), 0) or size
    if size > room and not singles then
        return call:answer('\2' .. tube.options.capacity_bytes)
    end
    size = math.min(size, room)
    local numbers = tube.numbers
    local id = numbers[NEXT_ID]
    if id + size > TASK_ID_MAX then
        return call:answer('\3')
    end
    local put_all = tube.options.plain and plain.put or put_each
    local states = put_all(tube, call, header, first, size)
    numbers[NEXT_ID] = id + size
    count(tube, 'put', size)
    call:answer('\0' .. struct.pack('<d', id) .. (singles and tube.options.capacity_bytes or '') .. states)
end
