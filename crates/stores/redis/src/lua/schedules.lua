-- Schedules, under the hash tag of the registry: schedules their records by name, schedule_names their names in order, schedule_times the
-- next times of those that are due at some time. The rules are in `stored_schedule.rs` of the core; what a schedule puts, and when, is
-- text that only servers read.
--
-- A fire puts tasks into a tube. On a single Redis that and the change of the schedule are one call. On a cluster they may be on two nodes:
-- there the tube keeps under c the last fire of each schedule and how many tasks it put, in one step with the puts. A fire of the same
-- generation puts nothing: the kept one is answered, so that the schedule is changed by it. Nor does one of an earlier generation, which
-- may be that of a registry which lost its last writes: then the generation is renewed.

-- The generation, which each set and each fire renews, flags, the next time, when it last added a task, how many it added, how many times
-- were skipped.
local RECORD = '<dBdddd'
local TEXT_AT = 42
local IS_PAUSED, HAS_NEXT, HAS_LAST = 1, 2, 4
-- What a set wants.
local ONLY_NEW, KEEP_PAUSED = 1, 2
-- The generation and the time that a fire expects, whether there is a next time, that time, and how many times are skipped.
local FIRE = '<ddBdd'
-- After it the numbers of tasks that were put, added and there already.
local FIRED = '<ddBddddd'

local OK, UNKNOWN, TOO_MANY, EXISTS, STALE, REPEATED, EARLIER = 0, 2, 4, 6, 9, 10, 11

local function read(base, name)
    local raw = redis.call('HGET', base .. ':schedules', name)
    if not raw then
        return nil
    end
    local s = { name = name, text = string.sub(raw, TEXT_AT) }
    s.generation, s.flags, s.next, s.last, s.fired, s.skipped = struct.unpack(RECORD, raw)
    return s
end

local function record_of(s)
    return struct.pack(RECORD, s.generation, s.flags, s.next, s.last, s.fired, s.skipped) .. s.text
end

-- The next time of a schedule, unless it is paused or over.
local function due_of(s)
    return has(s.flags, HAS_NEXT) and not has(s.flags, IS_PAUSED) and s.next
end

local function write(base, s)
    local due = due_of(s)
    redis.call('HSET', base .. ':schedules', s.name, record_of(s))
    redis.call('ZADD', base .. ':schedule_names', '0', s.name)
    if due then
        redis.call('ZADD', base .. ':schedule_times', string.format('%.0f', due), s.name)
    else
        redis.call('ZREM', base .. ':schedule_times', s.name)
    end
end

-- An answer of the registry: the status, the first next time of all, and these values.
local function answer(base, status, values)
    local first = redis.call('ZRANGE', base .. ':schedule_times', '0', '0', 'WITHSCORES')[2]
    local all = { status, first or '' }
    for place, value in ipairs(values or {}) do
        all[place + 2] = value
    end
    return all
end

-- These schedules, each as its name and its record, after these values.
local function show(base, names_of, values)
    local shown = values or {}
    for _, name in ipairs(names_of) do
        local record = redis.call('HGET', base .. ':schedules', name)
        if record then
            shown[#shown + 1] = name
            shown[#shown + 1] = record
        end
    end
    return answer(base, OK, shown)
end

-- A new generation: never one that a node which lost its last writes has used.
local function next_generation(base)
    local key = base .. ':schedule_generation'
    local generation = math.max(tonumber(redis.call('GET', key) or 0) + 1, clock())
    redis.call('SET', key, string.format('%.0f', generation))
    return generation
end

local function set_flag(s, flag, there)
    s.flags = s.flags - (has(s.flags, flag) and flag or 0) + (there and flag or 0)
end

-- Creates a schedule from its record, or replaces it; a replaced one keeps what it counted, and with KEEP_PAUSED whether it is paused.
-- Answers whether it is new.
function schedules.schedule_set(base, _, name, wanted, raw)
    local before, s = read(base, name), { name = name, text = string.sub(raw, TEXT_AT), last = 0, fired = 0, skipped = 0 }
    local _, flags
    wanted = tonumber(wanted)
    if before and has(wanted, ONLY_NEW) then
        return answer(base, EXISTS)
    elseif not before and redis.call('HLEN', base .. ':schedules') >= {{SCHEDULES_MAX}} then
        return answer(base, TOO_MANY)
    end
    _, flags, s.next = struct.unpack(RECORD, raw)
    s.flags, s.generation = flags, next_generation(base)
    set_flag(s, HAS_LAST, before and has(before.flags, HAS_LAST))
    if has(wanted, KEEP_PAUSED) then
        set_flag(s, IS_PAUSED, before and has(before.flags, IS_PAUSED))
    end
    if before then
        s.last, s.fired, s.skipped = before.last, before.fired, before.skipped
    end
    write(base, s)
    return answer(base, OK, { before and 0 or 1 })
end

function schedules.schedule_get(base, _, name)
    return show(base, { name })
end

-- Schedules after this name (or all), by name, at most so many.
function schedules.schedule_list(base, _, after, limit)
    local from = after == '' and '-' or '(' .. after
    return show(base, redis.call('ZRANGEBYLEX', base .. ':schedule_names', from, '+', 'LIMIT', 0, limit))
end

-- Schedules whose time has come, by time and name, at most so many after the first so many; before them the moment at which they are due,
-- and the first time after it.
function schedules.schedule_due(base, now, limit, skip)
    local times, at = base .. ':schedule_times', string.format('%.0f', now)
    local later = redis.call('ZRANGEBYSCORE', times, '(' .. at, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    return show(base, redis.call('ZRANGEBYSCORE', times, '-inf', at, 'LIMIT', skip, limit), { at, later or '' })
end

function schedules.schedule_remove(base, _, name)
    if redis.call('HDEL', base .. ':schedules', name) == 0 then
        return answer(base, UNKNOWN)
    end
    redis.call('ZREM', base .. ':schedule_names', name)
    redis.call('ZREM', base .. ':schedule_times', name)
    return answer(base, OK)
end

function schedules.schedule_pause(base, _, name, paused)
    local s = read(base, name)
    if not s then
        return answer(base, UNKNOWN)
    end
    set_flag(s, IS_PAUSED, paused == '1')
    write(base, s)
    return show(base, { name })
end

-- The first next time of all.
function schedules.schedule_next(base)
    return answer(base, OK)
end

-- Whether a fire can change its schedule: the status, and the schedule.
local function check(base, name, text)
    local s, generation, expected = read(base, name), struct.unpack(FIRE, text)
    if not s then
        return UNKNOWN
    end
    local is_next = s.generation == generation and due_of(s) == expected
    return is_next and OK or STALE, s
end

-- Changes a schedule after its tasks were put.
local function change(base, now, s, text, added, existing)
    local _, has_next, next_time, skipped
    _, _, has_next, next_time, skipped = struct.unpack(FIRE, text)
    set_flag(s, HAS_NEXT, has_next == 1)
    s.generation = next_generation(base)
    s.next, s.fired, s.skipped = next_time, s.fired + added, s.skipped + skipped + existing
    if added > 0 then
        set_flag(s, HAS_LAST, true)
        s.last = now
    end
    write(base, s)
end

-- Changes a schedule whose tasks were put before, also if it was paused meanwhile, or one that puts none.
function schedules.schedule_fired(base, now, name, text)
    local status, s = check(base, name, text)
    local generation, expected, _, _, _, put, added, existing = struct.unpack(FIRED, text)
    if status == OK or s and put > 0 and s.generation == generation and s.next == expected then
        change(base, now, s, text, added, existing)
        return answer(base, OK)
    end
    return answer(base, status)
end

-- Renews the generation of a schedule that is earlier than this one.
function schedules.schedule_renew(base, _, name, generation)
    local s, later = read(base, name), struct.unpack('<d', generation)
    if s and s.generation < later then
        s.generation = math.max(next_generation(base), later + 1)
        redis.call('SET', base .. ':schedule_generation', string.format('%.0f', s.generation))
        write(base, s)
    end
    return answer(base, s and OK or UNKNOWN)
end

-- Why schedules of another store, names and records from this place of a list on, cannot be added: the status, and one that exists already.
function schedules.refuse(base, list, first)
    if redis.call('HLEN', base .. ':schedules') + (#list - first + 1) / 2 > {{SCHEDULES_MAX}} then
        return TOO_MANY
    end
    for place = first, #list, 2 do
        if redis.call('HEXISTS', base .. ':schedules', list[place]) == 1 then
            return EXISTS, list[place]
        end
    end
end

-- Adds these schedules.
function schedules.add(base, list, first)
    for place = first, #list, 2 do
        local s = { name = list[place], text = string.sub(list[place + 1], TEXT_AT) }
        s.generation, s.flags, s.next, s.last, s.fired, s.skipped = struct.unpack(RECORD, list[place + 1])
        s.generation = next_generation(base)
        write(base, s)
    end
end

-- Adds schedules of another store, or none of them.
function schedules.schedule_import(base, _, _, _, _, args)
    local refusal, name = schedules.refuse(base, args, 3)
    if refusal then
        return answer(base, refusal, { name })
    end
    schedules.add(base, args, 3)
    return answer(base, OK)
end

-- How many tasks a put with this header added, by its answer, and how many held their key.
local function count_placed(header, text)
    local size, flags = struct.unpack('<I4B', header, 2)
    local existing = 0
    if flags >= 4 then
        for place = 2, #text, 9 do
            existing = existing + (string.byte(text, place) >= 128 and 1 or 0)
        end
    end
    return size, size - existing, existing
end

-- Puts the tasks of a schedule. Answers the status; the answer of the put follows.
local function fire_into(call, tube, name, text, header)
    local base, marks, generation = '{' .. call.prefix .. '}', tube.base .. ':c', string.sub(text, 1, 8)
    local status, s = OK, nil
    if call.is_single then
        status, s = check(base, name, text)
        if status ~= OK then
            return status
        end
    else
        local last = redis.call('HGET', marks, name)
        if last and string.sub(last, 1, 8) == generation then
            call:answer(last)
            return REPEATED
        elseif last and struct.unpack('<d', last) > struct.unpack('<d', generation) then
            call:answer(string.sub(last, 1, 8))
            return EARLIER
        end
    end
    verbs.put(tube, header, call)
    local placed = call.answers[#call.answers]
    if string.byte(placed) == 0 then
        local put, added, existing = count_placed(header, placed)
        if s then
            change(base, call.now, s, text, added, existing)
        else
            redis.call('HSET', marks, name, text .. struct.pack('<ddd', put, added, existing))
        end
    end
    return OK
end

-- After the first arguments of every call and the name of the tube: whether this is a single Redis, the name of the schedule, the fire, and
-- the put with its bodies.
local function fire(keys, args)
    local base, place = keys[1], 2
    local call = new_call(base, args, true)
    call.is_single, call.next = args[6] == '1', 10
    local now, tube, other = call.now, open_tube(call, base, args[5])
    call:answer('')
    if tube then
        call.answers[place] = string.char(fire_into(call, tube, args[7], args[8], args[9]))
        close_tube(call, tube)
    else
        call.answers[place] = string.char(OK)
        call:answer('\1')
    end
    if next(call.tubes) or next(call.semaphores) then
        end_call(call, tube)
    end
    call.answers[1] = head_of(tube, now, other)
    return call.answers
end

redis.register_function(NAME .. '_fire', fire)
