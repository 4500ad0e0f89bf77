-- The fast path of plain tubes, which have neither sub-queues nor a semaphore: puts, takes and acks work on encoded records without
-- decoding them, and collect their writes as argument lists of Redis commands.
--
-- Writes that are collected and not sent yet are the pending lists. Within them a task is put, or taken, or acked after it was taken: so
-- removals are sent last. Any other command, and code that reads an order, sends the pending lists first.

-- Most tasks that a take reads together.
local WINDOW_MAX = 500
-- Flags, whether the body is apart, the end of a delivery, three numbers that are its session and its start, its lease, and whether the
-- task has failures, and a key or its own number of attempts; the position of the session.
local HELD = '<BBddddc8B'
local SESSION_AT, MORE_AT = 11, 43

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

-- Adds a deadline of a task.
local function add_deadline(pending, moment, id)
    local w = pending.w
    if not w then
        -- First the member that makes Redis use a skip list: it scans small orders.
        w = { '+inf', TALL }
        pending.w = w
    end
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

-- Puts such tasks, whose extensions begin so and end with these keys.
function plain.put_keyed(tube, ids, keys, beginnings, args, first)
    local pending = tube.pending
    local template = pending.templates.extended_template
    local t, r, pri = list(pending, 't'), list(pending, 'r'), template.pri
    local before, listed, ordered = template.before .. pri .. template.behind, #t, #r
    local last, size, opening = nil, -1, nil
    for item = 1, #ids do
        local id, body, key, beginning = ids[item], args[first + item - 1], keys[item], beginnings[item]
        if beginning ~= last or #body ~= size then
            -- Keys and bodies of one put often have the same length.
            last, size = beginning, #body
            opening = before .. struct.pack('<I4I4', #beginning + #key, size - 4) .. beginning
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

-- Reads the first tasks of the order, for all takes of this call.
local function read_window(tube, call, want)
    flush(tube)
    local size = math.min(math.max(want, call.wanted), WINDOW_MAX)
    local ids, records = redis.call('ZRANGE', tube.base .. ':r', '0', size - 1), {}
    for place = 1, #ids do
        ids[place] = string.sub(ids[place], 9)
    end
    if #ids > 0 then
        records = redis.call('HMGET', tube.base .. ':t', unpack(ids))
    end
    tube.pending.window = { ids = ids, records = records, next = 1, last = #ids < size }
    return tube.pending.window
end

-- The delivery of a task without its lease and its tail. Most deliveries of a call are equal, so the last one is reused.
local function delivery_of(tube, how, expires, ttr, apart)
    local ending, last = later(tube.now, how.lease >= 0 and how.lease or ttr), tube.pending.last
    if tube.options.ttl_kills_taken then
        ending = math.min(ending, expires)
    end
    if not last or last.ending ~= ending or last.flags ~= how.flags or last.session ~= how.session or last.apart ~= apart then
        last = { ending = ending, flags = how.flags, session = how.session, apart = apart }
        last.score = ending ~= NEVER and score_text(ending)
        last.text = struct.pack('<BBdc16d', how.flags, apart and 1 or 0, ending, how.session, tube.now)
        tube.pending.last = last
    end
    return last
end

-- Adds what few deliveries have: a deadline to remove, or a session.
local function add_delivery_rest(pending, like, id, expires)
    if expires ~= NEVER and not like.score then
        local gone = list(pending, 'gone_w')
        gone[#gone + 1] = id
    end
    if like.flags >= HAS_SESSION then
        local s = list(pending, 's')
        s[#s + 1] = '0'
        s[#s + 1] = like.session .. id
    end
end

-- The size of the body of a plain tube's task, and whether it is apart.
local function bytes_of(record)
    local bytes = struct.unpack('<I4', record, RECORD_BYTES - 3)
    return bytes, bytes > INLINE_MAX
end

-- The size of the body of a plain tube's task; negative if that is apart.
local function inline_bytes(record)
    local bytes, is_apart = bytes_of(record)
    return is_apart and -1 or bytes
end

-- The tail of the delivery of a task with an extension; this is the one of a task without.
local function extended(tail)
    return '\2' .. string.sub(tail, 2)
end

-- Delivers one task; its record is answered, its id and delivery are added to x.
local function deliver(tube, pending, how, id, record, lease, answers)
    local attempts, _, _, expires, ttr = struct.unpack('<ddddd', record, ATTEMPTS_AT)
    if expires <= tube.now then
        return false
    end
    local bytes, apart = bytes_of(record)
    how.bytes = how.bytes + bytes
    if how.bytes > BATCH_BYTES_MAX and how.taken > 0 and how.singles == 0 then
        how.full = true
        return false
    end
    local like, x, size = delivery_of(tube, how, expires, ttr, apart), pending.x, #pending.x
    local tail = how.tails and how.tails[how.taken + 1] or how.tail
    local fraction = attempts % 1
    if fraction > 0 then
        -- It has failures, or an extension.
        tail = string.char((fraction >= FAILED and 1 or 0) + (fraction % FAILED > 0 and 2 or 0)) .. string.sub(tail, 2)
    end
    x[size + 1], x[size + 2] = id, like.text .. lease .. tail
    if like.score then
        -- From now on this is its only deadline.
        add_deadline(pending, like.score, id)
    end
    if like.flags >= HAS_SESSION or expires ~= NEVER then
        add_delivery_rest(pending, like, id, expires)
    end
    answers[#answers + 1] = record
    if apart then
        -- Reading the window has written the puts of this call.
        answers[#answers + 1] = redis.call('HGET', tube.base .. ':b', id) or ''
    end
    return true
end

-- The delivery of all ordinary tasks of a take, if it can be known before.
local function usual_delivery(tube, how)
    if how.lease >= 0 and how.session == NO_SESSION and not tube.options.ttl_kills_taken then
        local usual = delivery_of(tube, how, NEVER, 0, false)
        return usual.score and usual
    end
end

-- Delivers tasks of the window, at most as many as requested. Expired tasks also leave the order, once, and wait for the tick that
-- removes them.
local function take_from(tube, pending, window, how, want, answers)
    local ids, records, place, taken = window.ids, window.records, window.next, how.taken
    local first, leases = taken, numbered(how.number + taken, math.min(#ids - place + 1, want - taken))
    local x, usual, tail, tails = pending.x, usual_delivery(tube, how), how.tail, how.tails
    local extended_tail = usual and not tails and extended(tail)
    while place <= #ids and taken < want do
        local id, record = ids[place], records[place]
        -- The numbers between them are the priority and the moment of the put.
        local attempts, _, _, expires = struct.unpack('<dddd', record, ATTEMPTS_AT)
        local bytes, ordinary = #record - RECORD_BYTES - 4, tails and tails[taken + 1] or tail
        if attempts % 1 > 0 then
            -- It has failures, or an extension.
            bytes, ordinary = inline_bytes(record), attempts % 1 == EXTENDED and extended_tail
        end
        if usual and ordinary and bytes >= 0 and how.bytes + bytes <= BATCH_BYTES_MAX and expires == NEVER then
            -- The same as below, but faster.
            local size = #x
            taken = taken + 1
            x[size + 1], x[size + 2] = id, usual.text .. leases[taken - first] .. ordinary
            add_deadline(pending, usual.score, id)
            answers[#answers + 1] = record
            how.taken, how.bytes = taken, how.bytes + bytes
        elseif deliver(tube, pending, how, id, record, leases[taken - first + 1], answers) then
            taken = taken + 1
            how.taken = taken
        elseif how.full then
            break
        end
        place = place + 1
    end
    pending.consumed = pending.consumed + place - window.next
    window.next = place
end

-- Answers the taken tasks as pairs of ids and deliveries, as they are listed, and then their records.
function plain.take(tube, call, how, want)
    local pending, answers, shown = pending_of(tube), call.answers, {}
    local head = #answers + 1
    answers[head] = ''
    how.flags = (how.lease >= 0 and EXPLICIT or 0) + (how.session ~= NO_SESSION and HAS_SESSION or 0)
    while how.taken < want and not how.full do
        local window = pending.window
        if not window or (window.next > #window.ids and not window.last) then
            window = read_window(tube, call, want - how.taken)
        end
        if window.next > #window.ids then
            break
        end
        local x = list(pending, 'x')
        local listed = #x
        take_from(tube, pending, window, how, want, answers)
        shown[#shown + 1] = table.concat(x, '', listed + 1)
    end
    count(tube, 'take', how.taken)
    answers[head] = '\0' .. struct.pack('<I4', how.taken) .. (#shown == 1 and shown[1] or table.concat(shown))
end

-- Reads the deliveries of these ids, unless they are loaded.
function plain.load(tube, ids)
    local deliveries, unknown = pending_of(tube).deliveries, {}
    for place = 1, #ids do
        if deliveries[ids[place]] == nil then
            unknown[#unknown + 1] = ids[place]
        end
    end
    for first = 1, #unknown, VALUES_MAX do
        local last = math.min(first + VALUES_MAX - 1, #unknown)
        local found = redis.call('HMGET', tube.base .. ':x', unpack(unknown, first, last))
        for place = 1, #found do
            deliveries[unknown[first + place - 1]] = found[place]
        end
    end
end

-- The delivery of a task that had none when it was read: this call may have taken it. If there is none, answers the outcome of an ack.
local function reload_delivery(tube, id)
    flush(tube)
    local delivery = redis.call('HGET', tube.base .. ':x', id)
    if delivery then
        return delivery
    end
    return nil, redis.call('HEXISTS', tube.base .. ':t', id) == 1 and STALE_ITEM or MISSING_ITEM
end

-- Reads the records of finished tasks with an extension.
local function read_extended(tube, ids)
    local deliveries, extended, records = tube.pending.deliveries, {}, {}
    for place = 1, #ids do
        local delivery = deliveries[ids[place]]
        if delivery and string.byte(delivery, MORE_AT) >= 2 then
            extended[#extended + 1] = ids[place]
        end
    end
    for first = 1, #extended, VALUES_MAX do
        local last = math.min(first + VALUES_MAX - 1, #extended)
        for place, record in ipairs(redis.call('HMGET', tube.base .. ':t', unpack(extended, first, last))) do
            records[extended[first + place - 1]] = record
        end
    end
    tube.pending.records = records
end

-- The key of a finished task with an extension is free, or held for some time.
local function finish_key(tube, id)
    local record = tube.pending.records[id]
    if record == nil then
        record = redis.call('HGET', tube.base .. ':t', id)
    end
    if record then
        keyring.finish_record(tube, id, record)
    end
end

-- Adds what few finished tasks have: a session, a body apart, failures.
local function add_finished_rest(pending, id, flags, apart, failed, delivery)
    if flags >= HAS_SESSION then
        local s = list(pending, 'gone_s')
        s[#s + 1] = string.sub(delivery, SESSION_AT, SESSION_AT + 15) .. id
    end
    if apart == 1 then
        local b = list(pending, 'gone_b')
        b[#b + 1] = id
    end
    if failed then
        local f = list(pending, 'gone_f')
        f[#f + 1] = id
    end
end

-- Keeps a task as done. Its record is read when the pending lists are sent.
local function keep(tube, id, delivery, start, result)
    local size, worker = string.byte(delivery, WORKER_AT - 1), ''
    if size > 0 then
        worker = string.sub(delivery, WORKER_AT, WORKER_AT + size - 1)
    end
    done_tasks.note(tube, id, done_tasks.ended(tube, start, worker), result)
end

-- Acks one task with this delivery, if the caller holds it.
local function ack_one(tube, pending, id, delivery, acks, place)
    local flags, apart, ending, _, _, start, held, more = struct.unpack(HELD, delivery)
    local holder = acks.holder
    if ending <= tube.now then
        return STALE_ITEM
    elseif holder == BY_LEASE then
        if held ~= acks.leases[place] then
            return STALE_ITEM
        end
    elseif holder ~= BY_ANY_CALLER then
        local session = string.sub(delivery, SESSION_AT, SESSION_AT + 15)
        if holder ~= BY_SESSION or flags < HAS_SESSION or session ~= acks.who then
            return STALE_ITEM
        end
    end
    local gone = list(pending, 'gone')
    gone[#gone + 1] = id
    pending.deliveries[id] = false
    if ending ~= NEVER then
        local w = list(pending, 'gone_w')
        w[#w + 1] = id
    end
    if more >= 2 then
        finish_key(tube, id)
    end
    if pending.keeps_done then
        keep(tube, id, delivery, start, acks.results and acks.results[place])
        -- Its body and its failures stay where they are.
        apart, more = 0, 0
    end
    if flags >= HAS_SESSION or apart == 1 or more > 0 then
        add_finished_rest(pending, id, flags, apart, more % 2 == 1, delivery)
    end
    return DONE_ITEM
end

function plain.ack(tube, call, acks)
    plain.load(tube, acks.ids)
    if tube.options.keyed then
        read_extended(tube, acks.ids)
    end
    local pending, ids, outcomes, done = tube.pending, acks.ids, {}, 0
    for place = 1, #ids do
        local id, outcome = ids[place], nil
        local delivery = pending.deliveries[id]
        if not delivery then
            delivery, outcome = reload_delivery(tube, id)
        end
        outcome = outcome or ack_one(tube, pending, id, delivery, acks, place)
        done = done + (outcome == DONE_ITEM and 1 or 0)
        outcomes[place] = outcome
    end
    -- Callers that wait for room may continue.
    tube.notify = tube.notify or done > 0 and tube.options.capacity
    tube.numbers[DONE] = tube.numbers[DONE] + done
    count(tube, 'ack', done)
    call:answer('\0' .. table.concat(outcomes))
end
