-- Opens, creates, alters and drops tubes. The keys of a tube decide whether it exists; the registry is a list of names.

-- The incarnation of Redis that wrote the numbers follows them.
local NUMBERS_BYTES = 120

local function write_numbers(tube)
    local text = struct.pack(NUMBERS, unpack(tube.numbers, 1, 15)) .. incarnation.id()
    if text ~= tube.numbers_before then
        redis.call('SET', tube.base .. ':m', text)
    end
end

-- All servers were gone: gives back taken tasks, empties a temporary tube, resets the counters.
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

-- Registers a tube with a semaphore in its call, because the semaphore may change it later in the call.
local function join(call, tube)
    if tube.options.semaphore ~= '' then
        tube.call, tube.tag = call, string.sub(tube.base, #call.prefix + 3, -2)
        call.tubes[tube.tag] = tube
    end
    return tube
end

-- The tube; nil where there is none, or one of another name. An empty name means any.
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
    if incarnation.is_earlier(string.sub(tube.numbers_before, NUMBERS_BYTES + 1)) then
        tube.numbers[NEXT_ID] = tube.numbers[NEXT_ID] + incarnation.SKIP
    end
    if tube.numbers[EPOCH] < call.epoch then
        restart(tube, call.epoch)
    end
    return tube
end

gates.open_tube = open_tube

-- Why a tube cannot be created: the deadline has passed, or its semaphore does not exist.
local function refuse_create(call, header)
    local deadline = struct.unpack('<d', header, 2)
    if clock() > deadline then
        return '\12'
    end
    local key = options_of(string.sub(header, 10)).semaphore
    return key ~= '' and not sem.open(call, key) and '\13' or nil
end

-- The header has the deadline of this command and the options.
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

-- Changes the retry policy, the rate limit, or both.
local function alter_pace(tube, changes, given, retry, rate)
    if has(given, 512) then
        changes.retry = retry
    end
    if has(given, 1024) then
        pace.replace_rate(tube, rate)
        changes.rate = rate
    end
end

-- The header has a bit for each option that changes, then the values.
function verbs.alter(tube, header, call)
    local o, unlimited, changes = tube.options, false, { flags = tube.options.flags }
    local given, paused, has_capacity, capacity_bytes, ttl, ttr, delay, pri, attempts_max, keep_done, keep_done_max, place =
        struct.unpack('<I2BBc8dddc8I4dd', header, 2)
    local function set(flag, there)
        changes.flags = changes.flags - (has(changes.flags, flag) and flag or 0) + (there and flag or 0)
    end
    if has(given, 1) then
        set(PAUSED, paused == 1)
    end
    if has(given, 2) then
        unlimited = o.capacity and has_capacity == 0
        set(HAS_CAPACITY, has_capacity == 1)
        changes.capacity_bytes = capacity_bytes
    end
    changes.ttl = has(given, 4) and ttl or nil
    changes.ttr = has(given, 8) and ttr or nil
    changes.delay = has(given, 16) and delay or nil
    changes.pri = has(given, 32) and pri or nil
    changes.attempts_max = has(given, 64) and attempts_max or nil
    if has(given, 128) then
        flush(tube)
        local is_left = keep_done < 0 and redis.call('EXISTS', tube.base .. ':e') == 1
        changes.keep_done = is_left and done_tasks.SOME_LEFT or keep_done
    end
    changes.keep_done_max = has(given, 256) and keep_done_max or nil
    if given >= 512 then
        alter_pace(tube, changes, given, pace.read(header, place))
    end
    change_options(tube, changes)
    tube.notify, tube.unlimited = true, unlimited
    info(tube, header, call)
end

-- The header has the deadline of this command, the queue number (or 0) and the name.
function verbs.rename(tube, header, call)
    local deadline, queue, name = struct.unpack('<dI4I2c0', header, 2)
    if clock() > deadline then
        return call:answer('\12')
    end
    change_options(tube, { queue = queue > 0 and queue or nil, name = name })
    tube.notify = true
    info(tube, header, call)
end

function verbs.drop(tube, _, call)
    flush(tube)
    if redis.call('HLEN', tube.base .. ':x') > 0 then
        return call:answer('\7')
    end
    local ids = gates.all_ids(tube)
    empty(tube)
    gates.regate(tube, ids)
    redis.call('UNLINK', tube.base .. ':o', tube.base .. ':m', tube.base .. ':l', tube.base .. ':c')
    tube.dropped = true
    call:answer('\0')
end

function verbs.truncate(tube, _, call)
    local ids = gates.all_ids(tube)
    empty(tube)
    gates.regate(tube, ids)
    call:answer('\0')
end
