-- A tube begins, changes and ends. That it exists is what its own keys say; the registry is a list of names.

local function write_numbers(tube)
    local text = struct.pack(NUMBERS, unpack(tube.numbers, 1, 15))
    if text ~= tube.numbers_before then
        redis.call('SET', tube.base .. ':n', text)
    end
end

local function write_options(tube, o)
    local raw = struct.pack(OPTIONS, o.kind, o.flags, o.number, o.ttl, o.ttr, o.delay, o.attempts_max, o.pri, o.capacity_bytes)
    redis.call('SET', tube.base .. ':o', raw)
    tube.options = options_of(raw)
end

-- All servers were gone for a while: taken tasks are given back, a temporary tube is empty, numbers begin again.
local function restart(tube, epoch)
    if has(tube.options.flags, TEMPORARY) then
        empty(tube)
    else
        give_back_all(tube, redis.call('SMEMBERS', tube.base .. ':x'), true)
    end
    for number = DONE, 15 do
        tube.numbers[number] = 0
    end
    tube.numbers[EPOCH] = epoch
end

-- The tube, or nothing where there is none.
local function open_tube(base, now, epoch)
    local raw = redis.call('MGET', base .. ':o', base .. ':n')
    if not raw[1] then
        return nil
    end
    local tube = new_tube(base, now, raw[1], { struct.unpack(NUMBERS, raw[2]) })
    tube.numbers_before = raw[2]
    if tube.numbers[EPOCH] < epoch then
        restart(tube, epoch)
    end
    return tube
end

-- The options follow in the header.
local function create(base, now, epoch, header)
    local numbers = {}
    for number = 1, 15 do
        numbers[number] = 0
    end
    numbers[EPOCH] = epoch
    local raw = string.sub(header, 2)
    redis.call('SET', base .. ':o', raw)
    return new_tube(base, now, raw, numbers)
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

local function drop(tube, _, call)
    flush(tube)
    if redis.call('SCARD', tube.base .. ':x') > 0 then
        return call:answer('\7')
    end
    empty(tube)
    redis.call('UNLINK', tube.base .. ':o', tube.base .. ':n')
    tube.dropped = true
    call:answer('\0')
end

local function truncate(tube, _, call)
    empty(tube)
    call:answer('\0')
end
