-- The fast path of plain tubes, which have neither sub-queues nor a semaphore: puts, takes and acks work on encoded records without
-- decoding them, and collect their writes as argument lists of Redis commands.
--
-- Writes that are collected and not sent yet are the pending lists. Within them a task is put, or taken, or acked after it was taken: so
-- removals are sent last. Any other command, and code that reads an order, sends the pending lists first.

-- The pending lists of this tube; noted changes of the slow path are written first.
local function pending_of(tube)
    if not tube.pending then
        flush(tube)
        tube.tasks, tube.window = {}, nil
        tube.pending = { deliveries = {}, templates = {}, consumed = 0, keeps_done = tube.options.keep_done >= 0 }
    end
    return tube.pending
end

-- A command that needs the slow path follows.
function plain.leave(tube)
    if tube.pending then
        flush(tube)
        tube.pending = nil
    end
    if not tube.t then
        forget_notes(tube)
    end
end

local function list(pending, name)
    local found = pending[name]
    if not found then
        found = {}
        pending[name] = found
    end
    return found
end

-- The deadlines to add. First is the member that makes Redis use a skip list: it scans small orders.
local function deadlines_of(pending)
    pending.w = pending.w or { '+inf', TALL }
    return pending.w
end

-- Adds a deadline of a task.
local function add_deadline(pending, moment, id)
    local w = deadlines_of(pending)
    local size = #w
    w[size + 1], w[size + 2] = moment, id
end

-- The lists, the commands that write them, and their keys: additions first, then removals.
local STEPS = { { 't', 'HSET', ':t' }, { 'b', 'HSET', ':b' }, { 'r', 'ZADD', ':r' }, { 'w', 'ZADD', ':w' }, { 'x', 'HSET', ':x' },
    { 's', 'ZADD', ':s' }, { 'gone_w', 'ZREM', ':w' }, { 'gone_s', 'ZREM', ':s' }, { 'gone_b', 'HDEL', ':b' },
    { 'gone_f', 'HDEL', ':f' } }

-- Sends the pending lists. Taken tasks are the first of the order, so they are removed before others are added.
function plain.flush(tube)
    local pending, base = tube.pending, tube.base
    if pending.consumed > 0 then
        redis.call('ZREMRANGEBYRANK', base .. ':r', '0', pending.consumed - 1)
        pending.consumed = 0
    end
    pending.window = nil
    for place = 1, #STEPS do
        local step = STEPS[place]
        local values = pending[step[1]]
        if values then
            send(step[2], base .. step[3], values)
            pending[step[1]] = nil
        end
    end
    if tube.kept then
        done_tasks.move(tube)
    end
    if pending.gone then
        send('HDEL', base .. ':x', pending.gone)
        send('HDEL', base .. ':t', pending.gone)
        pending.gone = nil
    end
end

-- The string library is not available while a library is loaded.
local BYTES = {}

-- Consecutive numbers, each as eight bytes.
local function numbered(first, size)
    if not BYTES[0] then
        for byte = 0, 255 do
            BYTES[byte] = string.char(byte)
        end
    end
    if size == 1 then
        return { struct.pack('>I8', first) }
    end
    local texts, high, low = {}, '', 256
    for item = 1, size do
        if low == 256 then
            local text = struct.pack('>I8', first + item - 1)
            high, low = string.sub(text, 1, 7), string.byte(text, 8)
        end
        texts[item] = high .. BYTES[low]
        low = low + 1
    end
    return texts
end

-- The encoded lengths of an empty tail and of a body, by the length of the body.
local LENGTHS = {}

local function lengths_of(bytes)
    local text = LENGTHS[bytes]
    if not text then
        text = struct.pack('<I4I4', 0, bytes)
        LENGTHS[bytes] = bytes <= INLINE_MAX and text or nil
    end
    return text
end

-- The template of a task with these options: the record before and after the priority, up to the lengths, whether it is ready, and its
-- deadline as text, if it has one.
local function template_of(tube, new)
    local task = make_task(tube, new, '    ')
    local record, timer = encode(task), timer_of(task)
    return { before = string.sub(record, 1, PRI_AT - 1), pri = task.pri, behind = string.sub(record, PRI_AT + 8, LENGTHS_AT - 1),
        ready = task.state == READY, timer = timer ~= NEVER and score_text(timer) or nil }
end

-- The template of a task with these options, which has this name. Mostly only the moment of its put differs from the last call.
local function named_template(tube, templates, name, new)
    local template, o = templates[name], tube.options
    if not template then
        template = o[name] or template_of(tube, new)
        if not template.timer then
            o[name] = template
            template.behind = struct.pack('<d', tube.now) .. string.sub(template.behind, 9)
        end
        templates[name] = template
    end
    return template
end

-- The template of a task without options.
local function default_template(tube, templates)
    return named_template(tube, templates, 'template', {})
end

-- The template for the options at this position of the header, the priority, and the position of the next options. Many are equal, or
-- differ in the priority only.
local function next_template(tube, templates, header, place)
    local given = string.byte(header, place)
    if given == 0 then
        local template = default_template(tube, templates)
        return template, template.pri, place + 1
    elseif given == GIVES_PRI and tube.options.times then
        return default_template(tube, templates), string.sub(header, place + 1, place + 8), place + 9
    end
    local new, after = read_new(header, place)
    local said = string.sub(header, place, after - 1)
    local template = templates[said] or template_of(tube, new)
    templates[said] = template
    return template, template.pri, after
end

-- Lists a large body apart.
local function add_body(pending, id, body)
    local b = list(pending, 'b')
    b[#b + 1] = id
    b[#b + 1] = body
end

-- Completes a record with its body; a large one is listed apart.
local function with_body(pending, id, beginning, body)
    local lengths = lengths_of(#body - 4)
    if #body - 4 <= INLINE_MAX then
        return beginning .. lengths .. body
    end
    add_body(pending, id, body)
    return beginning .. lengths
end

-- Puts tasks without options, which are ready at once.
local function put_defaults(pending, template, ids, args, first)
    local t, r, pri = list(pending, 't'), list(pending, 'r'), template.pri
    local beginning, listed, ordered = template.before .. pri .. template.behind, #t, #r
    local size, opening = -1, nil
    for item = 1, #ids do
        local id, body = ids[item], args[first + item - 1]
        if #body ~= size then
            -- Bodies of one put often have the same length.
            size = #body
            opening = size - 4 <= INLINE_MAX and beginning .. lengths_of(size - 4)
        end
        t[listed + 1] = id
        t[listed + 2] = opening and opening .. body or with_body(pending, id, beginning, body)
        r[ordered + 1] = '0'
        r[ordered + 2] = pri .. id
        listed, ordered = listed + 2, ordered + 2
    end
end

-- Puts tasks with options. Answers which of them are delayed.
local function put_with_options(tube, pending, header, ids, args, first)
    local t, r, place, delayed = list(pending, 't'), list(pending, 'r'), PUT_ITEMS_AT, {}
    for item, id in ipairs(ids) do
        local template, pri
        template, pri, place = next_template(tube, pending.templates, header, place)
        t[#t + 1] = id
        t[#t + 1] = with_body(pending, id, template.before .. pri .. template.behind, args[first + item - 1])
        if template.ready then
            r[#r + 1] = '0'
            r[#r + 1] = pri .. id
        else
            delayed[#delayed + 1] = item
        end
        if template.timer then
            add_deadline(pending, template.timer, id)
        end
    end
    return delayed
end

-- The ids of the next tasks of this tube, if tasks that have an extension and no other options are ready at once, without a deadline.
function plain.extended_ids(tube, size)
    local template = named_template(tube, pending_of(tube).templates, 'extended_template', { extension = '' })
    return template.ready and not template.timer and numbered(tube.numbers[NEXT_ID], size)
end

-- Puts such tasks with these keys, whose extensions begin so.
function plain.put_keyed(tube, ids, keys, beginning, args, first)
    local pending = tube.pending
    local template = pending.templates.extended_template
    local t, r, pri = list(pending, 't'), list(pending, 'r'), template.pri
    local before, listed, ordered = template.before .. pri .. template.behind, #t, #r
    local key_size, size, opening = -1, -1, nil
    for item = 1, #ids do
        local id, body, key = ids[item], args[first + item - 1], keys[item]
        if #key ~= key_size or #body ~= size then
            -- Keys and bodies of one put often have the same length.
            key_size, size = #key, #body
            opening = before .. struct.pack('<I4I4', #beginning + 1 + key_size, size - 4) .. beginning .. string.char(key_size)
        end
        t[listed + 1] = id
        if size - 4 <= INLINE_MAX then
            t[listed + 2] = opening .. key .. body
        else
            t[listed + 2] = opening .. key
            add_body(pending, id, body)
        end
        r[ordered + 1], r[ordered + 2] = '0', pri .. id
        listed, ordered = listed + 2, ordered + 2
    end
    pending.window, tube.notify = nil, true
end

-- Puts tasks. Answers their states.
function plain.put(tube, call, header, first, size)
    local pending, delayed = pending_of(tube), {}
    local ids, usual = numbered(tube.numbers[NEXT_ID], size), default_template(tube, pending.templates)
    if usual.ready and not usual.timer and #header == PUT_ITEMS_AT - 1 + size then
        put_defaults(pending, usual, ids, call.args, first)
    else
        delayed = put_with_options(tube, pending, header, ids, call.args, first)
    end
    if #delayed < size then
        -- The window of the last take is out of date.
        pending.window, tube.notify = nil, true
    end
    return plain.states(tube, size, delayed)
end

-- The states of new tasks, of which these are delayed.
function plain.states(tube, size, delayed)
    if #delayed == 0 then
        return string.rep('\0', size)
    end
    tube.numbers[DELAYED_COUNT] = tube.numbers[DELAYED_COUNT] + #delayed
    local states = {}
    for item = 1, size do
        states[item] = '\0'
    end
    for _, item in ipairs(delayed) do
        states[item] = '\2'
    end
    return table.concat(states)
end
