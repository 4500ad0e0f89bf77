-- A tube begins, changes and ends. That it exists is what its own keys say; the registry is a list of names.

-- Behind the numbers stands in which life of Redis they were written.
local NUMBERS_BYTES = 120

local function write_numbers(tube)
    local text = struct.pack(NUMBERS, unpack(tube.numbers, 1, 15)) .. life.mark()
    if text ~= tube.numbers_before then
        redis.call('SET', tube.base .. ':m', text)
    end
end

local function write_options(tube, o)
    local raw = struct.pack(OPTIONS, o.kind, o.flags, o.number, o.ttl, o.ttr, o.delay, o.attempts_max, o.pri,
        o.capacity_bytes) .. o.tail
    redis.call('SET', tube.base .. ':o', raw)
    tube.options = options_of(raw)
end

-- All servers were gone for a while: taken tasks are given back, a temporary tube is empty, numbers begin again.
local function restart(tube, epoch)
    tube.restarted = true
    plain.leave(tube)
    if has(tube.options.flags, TEMPORARY) then
        local ids = gates.all_ids(tube)
        empty(tube)
        gates.regate(tube, ids)
    else
        give_back_all(tube, taken_ids(tube), true)
    end
    for number = DONE, 15 do
        tube.numbers[number] = 0
    end
    tube.numbers[EPOCH] = epoch
end

-- A tube with a semaphore is met again by what its call does to others.
local function join(call, tube)
    if tube.options.semaphore ~= '' then
        tube.call, tube.home = call, string.sub(tube.base, #call.prefix + 3, -2)
        call.tubes[tube.home] = tube
    end
    return tube
end

-- The tube, or nothing where there is none, or one of another name. Who does not name it means whichever is there.
local function open_tube(call, base, name)
    local raw = redis.call('MGET', base .. ':o', base .. ':m')
    if not raw[1] then
        return nil
    end
    if name ~= '' and options_of(raw[1]).name ~= name then
        return nil, true
    end
    local numbers = raw[2] or earlier.upgrade(base)
    local tube = join(call, new_tube(base, call.now, raw[1], { struct.unpack(NUMBERS, numbers) }))
    tube.numbers_before = numbers
    if life.is_over(string.sub(tube.numbers_before, NUMBERS_BYTES + 1)) then
        tube.numbers[NEXT_ID] = tube.numbers[NEXT_ID] + life.JUMP
    end
    if tube.numbers[EPOCH] < call.epoch then
        restart(tube, call.epoch)
    end
    return tube
end

gates.open_tube = open_tube

-- Why a tube cannot be made: it is too late, or its semaphore is not there.
local function refuse_create(call, header)
    local deadline = struct.unpack('<d', header, 2)
    if clock() > deadline then
        return '\12'
    end
    local key = options_of(string.sub(header, 10)).semaphore
    return key ~= '' and not sem.open(call, key) and '\13' or nil
end

-- Until when this may still be done, and the options.
local function create(call, base, header)
    local numbers = {}
    for number = 1, 15 do
        numbers[number] = 0
    end
    numbers[EPOCH] = call.epoch
    local raw = string.sub(header, 10)
    redis.call('SET', base .. ':o', raw)
    return join(call, new_tube(base, call.now, raw, numbers))
end

-- Which options to change, as bits in the order of what follows.
local function alter(tube, header, call)
    local o, unlimited = {}, false
    for key, value in pairs(tube.options) do
        o[key] = value
    end
    local given, paused, has_capacity, capacity_bytes, ttl, ttr, delay, pri, attempts_max =
        struct.unpack('<BBBc8dddc8I4', header, 2)
    local function set(flag, there)
        o.flags = o.flags - (has(o.flags, flag) and flag or 0) + (there and flag or 0)
    end
    if has(given, 1) then
        set(PAUSED, paused == 1)
    end
    if has(given, 2) then
        unlimited = o.capacity and has_capacity == 0
        set(HAS_CAPACITY, has_capacity == 1)
        o.capacity_bytes = capacity_bytes
    end
    o.ttl = has(given, 4) and ttl or o.ttl
    o.ttr = has(given, 8) and ttr or o.ttr
    o.delay = has(given, 16) and delay or o.delay
    o.pri = has(given, 32) and pri or o.pri
    o.attempts_max = has(given, 64) and attempts_max or o.attempts_max
    write_options(tube, o)
    tube.news, tube.unlimited = true, unlimited
    info(tube, header, call)
end

-- Until when this may still be done, the number of the queue (or none), the name.
local function name_tube(tube, header, call)
    local deadline, queue, name = struct.unpack('<dI4I2c0', header, 2)
    if clock() > deadline then
        return call:answer('\12')
    end
    local o = {}
    for key, value in pairs(tube.options) do
        o[key] = value
    end
    o.tail = struct.pack(TAIL, queue > 0 and queue or o.queue, #name, name, #o.semaphore, o.semaphore)
    write_options(tube, o)
    tube.news = true
    info(tube, header, call)
end

local function drop(tube, _, call)
    flush(tube)
    if redis.call('HLEN', tube.base .. ':x') > 0 then
        return call:answer('\7')
    end
    local ids = gates.all_ids(tube)
    empty(tube)
    gates.regate(tube, ids)
    redis.call('UNLINK', tube.base .. ':o', tube.base .. ':m')
    tube.dropped = true
    call:answer('\0')
end

local function truncate(tube, _, call)
    local ids = gates.all_ids(tube)
    empty(tube)
    gates.regate(tube, ids)
    call:answer('\0')
end
