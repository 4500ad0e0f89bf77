-- Encodes tasks and tubes for answers.

local function is_busy(tube, key)
    local noted = tube.u[key]
    if noted == nil then
        return redis.call('SISMEMBER', tube.base .. ':u', key) == 1
    end
    return noted
end

local function reason_of(tube, task)
    if task.state == TAKEN then
        return REASONS.running
    elseif task.state == DELAYED then
        return REASONS.not_due
    elseif task.expires <= tube.now then
        return REASONS.expired
    elseif task.state == GATED then
        return REASONS.semaphore
    elseif task.state == DEAD_LETTER then
        return REASONS.used_up
    elseif task.state == BURIED then
        return REASONS.buried
    elseif tube.options.paused then
        return REASONS.paused
    elseif tube.options.subqueues and is_busy(tube, task.subqueue) then
        return REASONS.subqueue_busy
    elseif tube.options.rate and pace.next_of(tube) then
        return REASONS.rate_limited
    end
    return REASONS.waits
end

-- Shown tasks: their heads (id, reason, state, delivery or the moment of the next one) follow the answer's own text; then come records, each followed by its body if
-- that is apart.
local function new_shown()
    return { heads = {}, texts = {} }
end

local function head_text(tube, id, task, reason)
    local text = id .. string.char(reason, task.state)
    if reason == REASONS.rate_limited then
        return text .. struct.pack('<d', pace.next_of(tube))
    end
    return task.state == TAKEN and text .. encode_delivery(task) or text
end

-- Adds a task. If it changes afterwards, its head must be made again.
local function show(tube, shown, id, reason)
    local task, texts = tube.tasks[id], shown.texts
    shown.heads[#shown.heads + 1] = head_text(tube, id, task, reason)
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

-- The size of these tasks together, if it is more than an answer may have. Some may be done.
local function too_many_bytes(tube, ids, kept)
    local bytes = 0
    for _, id in ipairs(ids) do
        local task = tube.tasks[id] or kept and kept[id]
        bytes = bytes + (task and task.bytes or 0)
    end
    return bytes > BATCH_BYTES_MAX and bytes
end

-- The ids at this position of a header.
local function read_ids(header, place)
    local size, ids = struct.unpack('<I4', header, place), {}
    for item = 1, size do
        local from = place + 4 + (item - 1) * 8
        ids[item] = string.sub(header, from, from + 7)
    end
    return ids
end

-- Shows tasks completely: after the record and the body of a task come its failures, if it has any, and how it ended, if it is done.
function verbs.peek(tube, header, call)
    local ids = read_ids(header, 2)
    load(tube, ids)
    local kept = done_tasks.find(tube, ids)
    local bytes = too_many_bytes(tube, ids, kept)
    if bytes then
        return call:answer('\4' .. struct.pack('<d', bytes))
    end
    local shown = new_shown()
    for _, id in ipairs(ids) do
        local task = tube.tasks[id]
        if task then
            show(tube, shown, id, reason_of(tube, task))
        elseif kept[id] then
            done_tasks.show(tube, shown, id, kept[id], true)
        end
        if task and task.failed then
            shown.texts[#shown.texts + 1] = failures.of(tube, id, task)
        end
    end
    answer_shown(call, '\0' .. struct.pack('<I4', #shown.heads), shown)
end

-- Shows taken tasks by id, without bodies.
function verbs.deliveries(tube, header, call)
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
        shown.heads[place] = head_text(tube, id, task, REASONS.running)
        shown.texts[place] = string.sub(encode(task), 1, -1 - #(task.body or ''))
    end
    answer_shown(call, '\0' .. struct.pack('<I4', #ids), shown)
end

local function next_timer(tube)
    local first = redis.call('ZRANGE', tube.base .. ':w', '0', '0', 'WITHSCORES')
    local timer = first[1] and first[1] ~= TALL and tonumber(first[2]) or NEVER
    if tube.options.rate and not tube.options.paused and redis.call('EXISTS', tube.base .. ':r') == 1 then
        return math.min(timer, pace.next_of(tube) or NEVER)
    end
    return timer
end

local function takeable(tube)
    if tube.options.paused then
        return 0
    end
    local size = redis.call('ZCARD', tube.base .. ':r')
    return tube.options.rate and math.min(size, pace.tokens_of(tube)) or size
end

local LAST_ID = '\255\255\255\255\255\255\255\255'

-- Since when the oldest task that could be taken waits, whether or not the tube is paused.
local function oldest_ready(tube)
    local from = '-'
    return oldest_of(function()
        local place = redis.call('ZRANGEBYLEX', tube.base .. ':r', from, '+', 'LIMIT', 0, 1)[1]
        if not place then
            return nil
        end
        local id = string.sub(place, 9)
        load(tube, { id })
        local task = tube.tasks[id]
        local since = task.since or task.created
        from = '(' .. (since == task.created and string.sub(place, 1, 8) .. LAST_ID or place)
        return since
    end) or NEVER
end

-- Answers the options, the numbers of tasks by state, and the counters.
local function info(tube, _, call)
    local all = total(tube)
    local taken = redis.call('HLEN', tube.base .. ':x')
    local buried = redis.call('ZCARD', tube.base .. ':d')
    local delayed = tube.numbers[DELAYED_COUNT]
    local kept = done_tasks.count(tube)
    call:answer('\0' .. tube.options.raw .. struct.pack('<dddddddd', all - taken - buried - delayed, taken, buried, delayed,
        kept, takeable(tube), next_timer(tube), oldest_ready(tube)) .. struct.pack(NUMBERS, unpack(tube.numbers, 1, 15)))
end
