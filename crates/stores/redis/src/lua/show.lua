-- How tasks are shown.

local REASON = { waits = 0, running = 1, not_due = 2, paused = 3, busy = 4, buried = 5, used_up = 6, expired = 7, finished = 8,
    semaphore = 9 }

local function is_busy(tube, key)
    local noted = tube.u[key]
    if noted == nil then
        return redis.call('SISMEMBER', tube.base .. ':u', key) == 1
    end
    return noted
end

local function reason_of(tube, task)
    if task.state == TAKEN then
        return REASON.running
    elseif task.state == DELAYED then
        return REASON.not_due
    elseif task.expires <= tube.now then
        return REASON.expired
    elseif task.state == GATED then
        return REASON.semaphore
    elseif task.state == DEAD_LETTER then
        return REASON.used_up
    elseif task.state == BURIED then
        return REASON.buried
    elseif tube.options.paused then
        return REASON.paused
    elseif tube.options.subqueues and is_busy(tube, task.subqueue) then
        return REASON.busy
    end
    return REASON.waits
end

-- Tasks that are shown: behind the answer's own text its head (id, reason, state, delivery); then records, each followed by its
-- body where that is apart.
local function new_shown()
    return { heads = {}, texts = {} }
end

local function head_text(id, task, reason)
    local text = id .. string.char(reason, task.state)
    return task.state == TAKEN and text .. encode_delivery(task) or text
end

-- Shows one more. Whoever changes it afterwards must have its head made again.
local function show(tube, shown, id, reason)
    local task, texts = tube.tasks[id], shown.texts
    shown.heads[#shown.heads + 1] = head_text(id, task, reason)
    texts[#texts + 1] = encode(task)
    if not task.body then
        texts[#texts + 1] = tube.b[id] or redis.call('HGET', tube.base .. ':b', id) or ''
    end
end

local function answer_shown(call, text, shown)
    call:answer(text .. table.concat(shown.heads))
    for _, part in ipairs(shown.texts) do
        call:answer(part)
    end
end

-- How many bytes these tasks have together, if they are more than may be shown.
local function too_many_bytes(tube, ids)
    local bytes = 0
    for _, id in ipairs(ids) do
        local task = tube.tasks[id]
        bytes = bytes + (task and task.bytes or 0)
    end
    return bytes > BYTES_MAX and bytes
end

-- The ids from this place of a header on.
local function read_ids(header, place)
    local size, ids = struct.unpack('<I4', header, place), {}
    for item = 1, size do
        local from = place + 4 + (item - 1) * 8
        ids[item] = string.sub(header, from, from + 7)
    end
    return ids
end

local function peek(tube, header, call)
    local ids = read_ids(header, 2)
    load(tube, ids)
    local bytes = too_many_bytes(tube, ids)
    if bytes then
        return call:answer('\4' .. struct.pack('<d', bytes))
    end
    local shown = new_shown()
    for _, id in ipairs(ids) do
        local task = tube.tasks[id]
        if task then
            show(tube, shown, id, reason_of(tube, task))
        end
    end
    answer_shown(call, '\0' .. struct.pack('<I4', #shown.heads), shown)
end

-- Who holds what, by id, without bodies.
local function deliveries(tube, header, call)
    local limit = struct.unpack('<d', header, 2)
    local ids = taken_ids(tube)
    table.sort(ids)
    for place = #ids, limit + 1, -1 do
        ids[place] = nil
    end
    load(tube, ids)
    local shown = new_shown()
    for place, id in ipairs(ids) do
        local task = tube.tasks[id]
        shown.heads[place] = head_text(id, task, REASON.running)
        shown.texts[place] = string.sub(encode(task), 1, -1 - #(task.body or ''))
    end
    answer_shown(call, '\0' .. struct.pack('<I4', #ids), shown)
end

local function next_timer(tube)
    local first = redis.call('ZRANGE', tube.base .. ':w', '0', '0', 'WITHSCORES')
    return first[1] and first[1] ~= TALL and tonumber(first[2]) or NEVER
end

local function takeable(tube)
    return tube.options.paused and 0 or redis.call('ZCARD', tube.base .. ':r')
end

-- Most tasks that are looked at to find the oldest, as in the core (OLDEST_LOOKED_MAX).
local OLDEST_LOOKED_MAX = 256
local LAST_ID = '\255\255\255\255\255\255\255\255'

-- Since when the oldest task waits that could be taken, pauses aside. Within a priority ids are in the order of puts, so behind
-- the first task that was ready at once nobody waits for longer; in front of it may be some that were delayed or
-- given back.
local function oldest_ready(tube)
    local from, oldest = '-', NEVER
    for _ = 1, OLDEST_LOOKED_MAX do
        local place = redis.call('ZRANGEBYLEX', tube.base .. ':r', from, '+', 'LIMIT', 0, 1)[1]
        if not place then
            break
        end
        local id = string.sub(place, 9)
        load(tube, { id })
        local task = tube.tasks[id]
        local since = task.since or task.created
        oldest = math.min(oldest, since)
        from = '(' .. (since == task.created and string.sub(place, 1, 8) .. LAST_ID or place)
    end
    return oldest
end

-- The options, how many tasks stand where, what was done.
local function info(tube, _, call)
    local all = total(tube)
    local taken = redis.call('HLEN', tube.base .. ':x')
    local buried = redis.call('ZCARD', tube.base .. ':d')
    local delayed = tube.numbers[DELAYED_COUNT]
    call:answer('\0' .. tube.options.raw .. struct.pack('<ddddddd', all - taken - buried - delayed, taken, buried, delayed,
        takeable(tube), next_timer(tube), oldest_ready(tube)) .. struct.pack(NUMBERS, unpack(tube.numbers, 1, 15)))
end
