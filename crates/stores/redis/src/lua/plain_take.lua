-- Takes tasks of plain tubes.

-- Most tasks that a take reads together.
local WINDOW_MAX = 500

-- Reads the first tasks of the order, for all takes of this call.
local function read_window(tube, call, want)
    flush(tube)
    local size = math.min(math.max(want, call.wanted), WINDOW_MAX)
    local ids, records, part = redis.call('ZRANGE', tube.base .. ':r', '0', size - 1), {}, string.sub
    for place = 1, #ids do
        ids[place] = part(ids[place], 9)
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

-- Delivers the next tasks of the window, as long as they are usual ones.
local function take_usual(pending, window, how, want, leases, answers, usual)
    local ids, records, place, taken, bytes = window.ids, window.records, window.next, how.taken, how.bytes
    local x, w, first, tail, tails, read = pending.x, deadlines_of(pending), how.first, how.tail, how.tails, struct.unpack
    local noted, listed, answered, text, score, common = #x, #w, #answers, usual.text, usual.score, how.common_tail
    while place <= #ids and taken < want do
        local record = records[place]
        -- The numbers between them are the priority and the moment of the put.
        local attempts, _, _, expires = read('<dddd', record, ATTEMPTS_AT)
        local size, ordinary = #record - RECORD_BYTES - 4, tails and tails[taken + 1] or tail
        if attempts % 1 > 0 then
            -- It has failures, or an extension.
            size, ordinary = inline_bytes(record), attempts % 1 == EXTENDED and how.extended_tail
        end
        if not ordinary or size < 0 or bytes + size > BATCH_BYTES_MAX or expires ~= NEVER then
            break
        elseif ordinary ~= common then
            how.is_uniform = how.is_uniform and not common
            common = ordinary
        end
        taken, bytes = taken + 1, bytes + size
        local id = ids[place]
        x[noted + 1], x[noted + 2] = id, text .. leases[taken - first] .. ordinary
        w[listed + 1], w[listed + 2] = score, id
        answered, noted, listed, place = answered + 1, noted + 2, listed + 2, place + 1
        answers[answered] = record
    end
    window.next, how.taken, how.bytes, how.common_tail = place, taken, bytes, common
end

-- Delivers tasks of the window, at most as many as requested. Expired tasks also leave the order, once, and wait for the tick that
-- removes them.
local function take_from(tube, pending, window, how, want, answers)
    local ids, records, start = window.ids, window.records, window.next
    how.first = how.taken
    local leases, usual = numbered(how.number + how.taken, math.min(#ids - start + 1, want - how.taken)), usual_delivery(tube, how)
    how.extended_tail = usual and not how.tails and extended(how.tail)
    while window.next <= #ids and how.taken < want do
        if usual then
            take_usual(pending, window, how, want, leases, answers, usual)
        end
        local place = window.next
        if place <= #ids and how.taken < want then
            how.is_uniform = false
            if deliver(tube, pending, how, ids[place], records[place], leases[how.taken - how.first + 1], answers) then
                how.taken = how.taken + 1
            elseif how.full then
                break
            end
            window.next = place + 1
        end
    end
    pending.consumed = pending.consumed + window.next - start
end

-- The heads of taken tasks, in two parts: if their deliveries differ only in the lease, which is one more for each, the first delivery and
-- then their ids (2), otherwise each id with its delivery (1). In an answer of the slow path they are in the first part (0).
local function heads_of(how, parts)
    if how.taken == 0 then
        return '\0' .. struct.pack('<I4B', 0, 0)
    end
    local kind, one, texts = 1, '', {}
    if how.is_uniform then
        kind, one = 2, parts[1].x[parts[1].first + 1]
    end
    for place, part in ipairs(parts) do
        texts[place] = kind == 2 and table.concat(part.ids, '', part.from, part.to) or table.concat(part.x, '', part.first, part.last)
    end
    return '\0' .. struct.pack('<I4B', how.taken, kind) .. one, #texts == 1 and texts[1] or table.concat(texts)
end

-- Answers the heads of the taken tasks, and then their records.
function plain.take(tube, call, how, want)
    local pending, answers, parts = pending_of(tube), call.answers, {}
    local head = #answers + 1
    answers[head], answers[head + 1] = '', ''
    how.flags = (how.lease >= 0 and EXPLICIT or 0) + (how.session ~= NO_SESSION and HAS_SESSION or 0)
    how.is_uniform = not how.tails
    while how.taken < want and not how.full do
        local window = pending.window
        if not window or (window.next > #window.ids and not window.last) then
            window = read_window(tube, call, want - how.taken)
        end
        if window.next > #window.ids then
            break
        end
        local x = list(pending, 'x')
        local part = { x = x, first = #x + 1, ids = window.ids, from = window.next }
        take_from(tube, pending, window, how, want, answers)
        part.last, part.to = #x, window.next - 1
        parts[#parts + 1] = part
    end
    count(tube, 'take', how.taken)
    answers[head], answers[head + 1] = heads_of(how, parts)
end
