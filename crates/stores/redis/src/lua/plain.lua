-- The straight way of plain tubes, which have neither sub-queues nor a semaphore: puts, takes and acks change texts where the
-- others read a record and write another, and list what is to be written as Redis wants it.
--
-- What is listed and not written yet is a lane. Within one a task is put, or taken, or acked after it was taken: so whatever is
-- to be gone is so after all else. Any other command, and whoever looks at an order, has the lists written first.

-- Most tasks that takes look at together.
local WINDOW_MAX = 500
-- Flags, whether the body is apart, the end and the lease of a delivery; where its session is.
local HELD = '<BBdxxxxxxxxxxxxxxxxxxxxxxxxc8'
local SESSION_AT = 11

-- Where this tube lists; what was noted in the other way is written first.
local function lane_of(tube)
    if not tube.lane then
        flush(tube)
        tube.tasks, tube.window = {}, nil
        tube.lane = { deliveries = {}, models = {}, consumed = 0 }
    end
    return tube.lane
end

-- What is not for this way is about to come.
function plain.leave(tube)
    if tube.lane then
        flush(tube)
        tube.lane = nil
    end
    if not tube.t then
        forget_notes(tube)
    end
end

local function list(lane, name)
    local found = lane[name]
    if not found then
        found = {}
        lane[name] = found
    end
    return found
end

-- The task has this moment.
local function list_moment(lane, moment, id)
    local w = lane.w
    if not w then
        -- First what makes this order a large one to Redis: it walks through small ones.
        w = { '+inf', TALL }
        lane.w = w
    end
    local size = #w
    w[size + 1], w[size + 2] = moment, id
end

-- What is listed, how it is written, and where: first what comes, then what goes.
local STEPS = { { 't', 'HSET', ':t' }, { 'b', 'HSET', ':b' }, { 'r', 'ZADD', ':r' }, { 'w', 'ZADD', ':w' }, { 'x', 'HSET', ':x' },
    { 's', 'ZADD', ':s' }, { 'gone_w', 'ZREM', ':w' }, { 'gone_s', 'ZREM', ':s' }, { 'gone_b', 'HDEL', ':b' } }

-- Takes see the first places of the order, so those are gone before others come in.
function plain.flush(tube)
    local lane, base = tube.lane, tube.base
    if lane.consumed > 0 then
        redis.call('ZREMRANGEBYRANK', base .. ':r', '0', lane.consumed - 1)
        lane.consumed = 0
    end
    lane.window = nil
    for place = 1, #STEPS do
        local step = STEPS[place]
        local values = lane[step[1]]
        if values then
            send(step[2], base .. step[3], values)
            lane[step[1]] = nil
        end
    end
    if lane.gone then
        send('HDEL', base .. ':x', lane.gone)
        send('HDEL', base .. ':t', lane.gone)
        lane.gone = nil
    end
end

-- While a library is loaded it has no functions for strings.
local BYTES = {}

-- Numbers one after the other, each as eight bytes.
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

-- The lengths of an empty tail and of a body, by those of the body.
local LENGTHS = {}

local function lengths_of(bytes)
    local text = LENGTHS[bytes]
    if not text then
        text = struct.pack('<I4I4', 0, bytes)
        LENGTHS[bytes] = bytes <= INLINE_MAX and text or nil
    end
    return text
end

-- What becomes of a task of which its put says this: the record before and behind the priority, up to the lengths, whether
-- it is ready, and its moment as a text, if it has one.
local function model_of(tube, new)
    local task = make_task(tube, new, '    ')
    local record, timer = encode(task), timer_of(task)
    return { before = string.sub(record, 1, PRI_AT - 1), pri = task.pri, behind = string.sub(record, PRI_AT + 8, LENGTHS_AT - 1),
        ready = task.state == READY, timer = timer ~= NEVER and score_text(timer) or nil }
end

-- The same where the put says nothing. Mostly only the moment at which it was made differs from that of the last call.
local function usual_model(tube, models)
    local model, o = models.usual, tube.options
    if not model then
        model = o.model or model_of(tube, {})
        if not model.timer then
            o.model = model
            model.behind = struct.pack('<d', tube.now) .. string.sub(model.behind, 9)
        end
        models.usual = model
    end
    return model
end

-- What the put says at this place of its header: what that makes of a task, its priority, and where the next one begins. Many
-- say the same, or differ in the priority alone.
local function next_model(tube, models, header, place)
    local given = string.byte(header, place)
    if given == 0 then
        local model = usual_model(tube, models)
        return model, model.pri, place + 1
    elseif given == GIVES_PRI and tube.options.times then
        return usual_model(tube, models), string.sub(header, place + 1, place + 8), place + 9
    end
    local new, after = read_new(header, place)
    local said = string.sub(header, place, after - 1)
    local model = models[said] or model_of(tube, new)
    models[said] = model
    return model, model.pri, after
end

-- The rest of a record behind this beginning; what does not fit is listed apart.
local function with_body(lane, id, beginning, body)
    if #body - 4 <= INLINE_MAX then
        return beginning .. lengths_of(#body - 4) .. body
    end
    local b = list(lane, 'b')
    b[#b + 1] = id
    b[#b + 1] = body
    return beginning .. lengths_of(#body - 4)
end

-- Puts tasks of which their put says nothing, into a tube where they are ready.
local function put_usual(lane, model, ids, args, first)
    local t, r, pri = list(lane, 't'), list(lane, 'r'), model.pri
    local beginning, listed, ordered = model.before .. pri .. model.behind, #t, #r
    local size, opening = -1, nil
    for item = 1, #ids do
        local id, body = ids[item], args[first + item - 1]
        if #body ~= size then
            -- Bodies of one put often have the same length.
            size = #body
            opening = size - 4 <= INLINE_MAX and beginning .. lengths_of(size - 4)
        end
        t[listed + 1] = id
        t[listed + 2] = opening and opening .. body or with_body(lane, id, beginning, body)
        r[ordered + 1] = '0'
        r[ordered + 2] = pri .. id
        listed, ordered = listed + 2, ordered + 2
    end
end

-- Puts any tasks. Answers which of them are delayed.
local function put_said(tube, lane, header, ids, args, first)
    local t, r, place, delayed = list(lane, 't'), list(lane, 'r'), PUT_ITEMS_AT, {}
    for item, id in ipairs(ids) do
        local model, pri
        model, pri, place = next_model(tube, lane.models, header, place)
        t[#t + 1] = id
        t[#t + 1] = with_body(lane, id, model.before .. pri .. model.behind, args[first + item - 1])
        if model.ready then
            r[#r + 1] = '0'
            r[#r + 1] = pri .. id
        else
            delayed[#delayed + 1] = item
        end
        if model.timer then
            list_moment(lane, model.timer, id)
        end
    end
    return delayed
end

-- Puts tasks. Answers their states.
function plain.put(tube, call, header, first, size)
    local lane, delayed = lane_of(tube), {}
    local ids, usual = numbered(tube.numbers[NEXT_ID], size), usual_model(tube, lane.models)
    if usual.ready and not usual.timer and #header == PUT_ITEMS_AT - 1 + size then
        put_usual(lane, usual, ids, call.args, first)
    else
        delayed = put_said(tube, lane, header, ids, call.args, first)
    end
    if #delayed < size then
        -- What a take has seen of the order is not so any more.
        lane.window, tube.news = nil, true
    end
    return plain.states(tube, size, delayed)
end

-- The states of so many new tasks, of which these are delayed.
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

-- The first places of the order, for as many as the takes of this call want.
local function look(tube, call, want)
    flush(tube)
    local size = math.min(math.max(want, call.wanted), WINDOW_MAX)
    local ids, records = redis.call('ZRANGE', tube.base .. ':r', '0', size - 1), {}
    for place = 1, #ids do
        ids[place] = string.sub(ids[place], 9)
    end
    if #ids > 0 then
        records = redis.call('HMGET', tube.base .. ':t', unpack(ids))
    end
    tube.lane.window = { ids = ids, records = records, next = 1, last = #ids < size }
    return tube.lane.window
end

-- What the delivery of a task is like but for its lease. Most of a call are the same, and then so is the text of that.
local function delivery_of(tube, how, expires, ttr, apart)
    local ending, last = later(tube.now, how.lease >= 0 and how.lease or ttr), tube.lane.last
    if tube.options.ttl_kills_taken then
        ending = math.min(ending, expires)
    end
    if not last or last.ending ~= ending or last.flags ~= how.flags or last.session ~= how.session or last.apart ~= apart then
        last = { ending = ending, flags = how.flags, session = how.session, apart = apart }
        last.score = ending ~= NEVER and score_text(ending)
        last.text = struct.pack('<BBdc16d', how.flags, apart and 1 or 0, ending, how.session, tube.now)
        tube.lane.last = last
    end
    return last
end

-- What most deliveries do not have: a moment before, and none now; a session.
local function list_rest(lane, like, id, expires)
    if expires ~= NEVER and not like.score then
        local gone = list(lane, 'gone_w')
        gone[#gone + 1] = id
    end
    if like.flags >= HAS_SESSION then
        local s = list(lane, 's')
        s[#s + 1] = '0'
        s[#s + 1] = like.session .. id
    end
end

-- How many bytes the body of a task of a plain tube has, and whether it is apart.
local function bytes_of(record)
    if #record == RECORD_BYTES then
        return struct.unpack('<I4', record, RECORD_BYTES - 3), true
    end
    return #record - RECORD_BYTES - 4, false
end

-- Delivers one task; its record is answered, and its id and delivery are in x.
local function deliver(tube, lane, how, id, record, lease, answers)
    local expires, ttr = struct.unpack('<dd', record, EXPIRES_AT)
    if expires <= tube.now then
        return false
    end
    local bytes, apart = bytes_of(record)
    how.bytes = how.bytes + bytes
    if how.bytes > BYTES_MAX and how.taken > 0 and how.singles == 0 then
        how.full = true
        return false
    end
    local like, x, size = delivery_of(tube, how, expires, ttr, apart), lane.x, #lane.x
    x[size + 1], x[size + 2] = id, like.text .. lease .. FILLING
    if like.score then
        -- This is its only moment from now on.
        list_moment(lane, like.score, id)
    end
    if like.flags >= HAS_SESSION or expires ~= NEVER then
        list_rest(lane, like, id, expires)
    end
    answers[#answers + 1] = record
    if apart then
        -- A look has written what this call has put.
        answers[#answers + 1] = redis.call('HGET', tube.base .. ':b', id) or ''
    end
    return true
end

-- What all deliveries of a take are like whose tasks have nothing special about them, if that can be said before.
local function usual_delivery(tube, how)
    if how.lease >= 0 and how.session == NO_SESSION and not tube.options.ttl_kills_taken then
        local usual = delivery_of(tube, how, NEVER, 0, false)
        return usual.score and usual
    end
end

-- Delivers what a look has seen, as far as it is wanted. What has expired leaves the order as well, once in its life, and waits
-- for the tick that removes it.
local function take_from(tube, lane, window, how, want, answers)
    local ids, records, place, taken = window.ids, window.records, window.next, how.taken
    local first, leases = taken, numbered(how.number + taken, math.min(#ids - place + 1, want - taken))
    local x, usual = lane.x, usual_delivery(tube, how)
    while place <= #ids and taken < want do
        local id, record = ids[place], records[place]
        local bytes = #record - RECORD_BYTES - 4
        if usual and bytes >= 0 and how.bytes + bytes <= BYTES_MAX and struct.unpack('<d', record, EXPIRES_AT) == NEVER then
            -- The same as below, and quicker.
            local size = #x
            taken = taken + 1
            x[size + 1], x[size + 2] = id, usual.text .. leases[taken - first] .. FILLING
            list_moment(lane, usual.score, id)
            answers[#answers + 1] = record
            how.taken, how.bytes = taken, how.bytes + bytes
        elseif deliver(tube, lane, how, id, record, leases[taken - first + 1], answers) then
            taken = taken + 1
            how.taken = taken
        elseif how.full then
            break
        end
        place = place + 1
    end
    lane.consumed = lane.consumed + place - window.next
    window.next = place
end

-- What was taken is answered as pairs of ids and deliveries, which is how they are listed, and then their records.
function plain.take(tube, call, how, want)
    local lane, answers, shown = lane_of(tube), call.answers, {}
    local head = #answers + 1
    answers[head] = ''
    how.flags = (how.lease >= 0 and EXPLICIT or 0) + (how.session ~= NO_SESSION and HAS_SESSION or 0)
    while how.taken < want and not how.full do
        local window = lane.window
        if not window or (window.next > #window.ids and not window.last) then
            window = look(tube, call, want - how.taken)
        end
        if window.next > #window.ids then
            break
        end
        local x = list(lane, 'x')
        local listed = #x
        take_from(tube, lane, window, how, want, answers)
        shown[#shown + 1] = table.concat(x, '', listed + 1)
    end
    count(tube, 'take', how.taken)
    answers[head] = '\0' .. struct.pack('<I4', how.taken) .. (#shown == 1 and shown[1] or table.concat(shown))
end

-- Reads the deliveries of these ids, unless they are known.
function plain.load(tube, ids)
    local deliveries, unknown = lane_of(tube).deliveries, {}
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

-- The delivery of a task that had none when that was read: perhaps this call has taken it. Answers what became of an ack where
-- there is none.
local function look_again(tube, id)
    flush(tube)
    local delivery = redis.call('HGET', tube.base .. ':x', id)
    if delivery then
        return delivery
    end
    return nil, redis.call('HEXISTS', tube.base .. ':t', id) == 1 and STALE_ITEM or MISSING_ITEM
end

-- What few tasks have that are done: a session, a body apart.
local function list_done_rest(lane, id, flags, apart, delivery)
    if flags >= HAS_SESSION then
        local s = list(lane, 'gone_s')
        s[#s + 1] = string.sub(delivery, SESSION_AT, SESSION_AT + 15) .. id
    end
    if apart == 1 then
        local b = list(lane, 'gone_b')
        b[#b + 1] = id
    end
end

-- Acks one task that has this delivery, if whoever says so holds it.
local function ack_one(tube, lane, id, delivery, acks, lease)
    local flags, apart, ending, held = struct.unpack(HELD, delivery)
    local holder = acks.holder
    if ending <= tube.now then
        return STALE_ITEM
    elseif holder == BY_LEASE then
        if held ~= lease then
            return STALE_ITEM
        end
    elseif holder ~= BY_ANYBODY then
        local session = string.sub(delivery, SESSION_AT, SESSION_AT + 15)
        if holder ~= BY_SESSION or flags < HAS_SESSION or session ~= acks.who then
            return STALE_ITEM
        end
    end
    local gone = list(lane, 'gone')
    gone[#gone + 1] = id
    lane.deliveries[id] = false
    if ending ~= NEVER then
        local w = list(lane, 'gone_w')
        w[#w + 1] = id
    end
    if flags >= HAS_SESSION or apart == 1 then
        list_done_rest(lane, id, flags, apart, delivery)
    end
    return DONE_ITEM
end

function plain.ack(tube, call, acks)
    plain.load(tube, acks.ids)
    local lane, ids, leases, outcomes, done = tube.lane, acks.ids, acks.leases, {}, 0
    for place = 1, #ids do
        local id, outcome = ids[place], nil
        local delivery = lane.deliveries[id]
        if not delivery then
            delivery, outcome = look_again(tube, id)
        end
        outcome = outcome or ack_one(tube, lane, id, delivery, acks, leases[place])
        done = done + (outcome == DONE_ITEM and 1 or 0)
        outcomes[place] = outcome
    end
    -- Whoever waits for room may go on.
    tube.news = tube.news or done > 0 and tube.options.capacity
    tube.numbers[DONE] = tube.numbers[DONE] + done
    count(tube, 'ack', done)
    call:answer('\0' .. table.concat(outcomes))
end
