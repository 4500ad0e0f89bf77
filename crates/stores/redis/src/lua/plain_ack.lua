-- Acks tasks of plain tubes.

-- Flags, whether the body is apart, the end of a delivery, three numbers that are its session and its start, its lease, and whether the
-- task has failures, and a key or its own number of attempts; the position of the session.
local HELD = '<BBddddc8B'
local SESSION_AT, MORE_AT = 11, 43

-- The deliveries of these ids.
local function read_deliveries(tube, ids)
    local deliveries = {}
    for first = 1, #ids, VALUES_MAX do
        local last = math.min(first + VALUES_MAX - 1, #ids)
        local found = redis.call('HMGET', tube.base .. ':x', unpack(ids, first, last))
        if last == #found then
            return found
        end
        for place = 1, #found do
            deliveries[first + place - 1] = found[place]
        end
    end
    return deliveries
end

-- Notes the deliveries of these ids, unless they are known.
local function note_deliveries(tube, ids)
    local deliveries, unknown = pending_of(tube).deliveries, {}
    for place = 1, #ids do
        if deliveries[ids[place]] == nil then
            unknown[#unknown + 1] = ids[place]
        end
    end
    local found = read_deliveries(tube, unknown)
    for place = 1, #unknown do
        deliveries[unknown[place]] = found[place]
    end
end

-- Reads the deliveries of these acks, before the first command of a call. Those of a single command whose ids are all different stay a
-- list; others are found by id, because an ack removes the delivery for the next one.
function plain.load(tube, all_acks)
    local first = all_acks[1]
    if #all_acks == 1 and first.ascends then
        first.pending, first.deliveries = pending_of(tube), read_deliveries(tube, first.ids)
        return
    end
    for _, acks in ipairs(all_acks) do
        note_deliveries(tube, acks.ids)
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

-- Reads the records of finished tasks with an extension; their deliveries are found by place or by id.
local function read_extended(tube, ids, deliveries, is_listed)
    local extended, records = {}, {}
    for place = 1, #ids do
        local delivery = deliveries[is_listed and place or ids[place]]
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

-- Acks the first of these tasks, as long as each is held with its lease and has nothing else, as nearly all are. The same as above, but
-- faster. Answers how many.
local function ack_usual(tube, pending, acks, deliveries)
    local ids, leases, now, read = acks.ids, acks.leases, tube.now, struct.unpack
    local gone, deadlines = list(pending, 'gone'), list(pending, 'gone_w')
    local before, before_deadlines = #gone, #deadlines
    for place = 1, #ids do
        local delivery = deliveries[place]
        if not delivery then
            return place - 1
        end
        local flags, apart, ending, _, _, _, held, more = read(HELD, delivery)
        if held ~= leases[place] or ending <= now or ending == NEVER or flags >= HAS_SESSION or apart ~= 0 or more ~= 0 then
            return place - 1
        end
        gone[before + place], deadlines[before_deadlines + place] = ids[place], ids[place]
    end
    return #ids
end

function plain.ack(tube, call, acks)
    local pending, ids, deliveries, done = pending_of(tube), acks.ids, acks.deliveries, 0
    -- The slow path may have run since they were read.
    local is_listed = acks.pending == pending
    if not is_listed then
        note_deliveries(tube, ids)
        deliveries = pending.deliveries
    elseif acks.holder == BY_LEASE and not pending.keeps_done then
        done = ack_usual(tube, pending, acks, deliveries)
    end
    if done < #ids and tube.options.keyed then
        read_extended(tube, ids, deliveries, is_listed)
    end
    local outcomes = { string.rep(DONE_ITEM, done) }
    for place = done + 1, #ids do
        local id, outcome = ids[place], nil
        local delivery = deliveries[is_listed and place or id]
        if not delivery then
            delivery, outcome = reload_delivery(tube, id)
        end
        outcome = outcome or ack_one(tube, pending, id, delivery, acks, place)
        done = done + (outcome == DONE_ITEM and 1 or 0)
        outcomes[#outcomes + 1] = outcome
    end
    -- Callers that wait for room may continue.
    tube.notify = tube.notify or done > 0 and tube.options.capacity
    tube.numbers[DONE] = tube.numbers[DONE] + done
    count(tube, 'ack', done)
    call:answer('\0' .. table.concat(outcomes))
end
