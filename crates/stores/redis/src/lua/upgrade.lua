-- Converts tubes of format 2: numbers under n, which now are under m, so that functions of that version stop before they change
-- anything; deliveries in the records, and a set of the taken ids; all bodies apart.

local OLD_RECORD = '<BBI4I4c8dddddc8dc16'
local OLD_RECORD_BYTES = 90
local OLD_STEP = 400

-- One task in the current format: its record, and its delivery if it is taken. The tail followed the old record.
local function convert(record, body)
    local task = {}
    task.state, task.flags, task.attempts, task.bytes, task.pri, task.created, task.expires, task.ttr, task.previous,
        task.moment, task.lease, task.start, task.session = struct.unpack(OLD_RECORD, record)
    task.subqueue = string.sub(record, OLD_RECORD_BYTES + 1)
    task.body = task.bytes <= INLINE_MAX and body or nil
    return encode(task), task.state == TAKEN and encode_delivery(task), task.body
end

local function convert_some(base, ids)
    local records, bodies = redis.call('HMGET', base .. ':t', unpack(ids)), redis.call('HMGET', base .. ':b', unpack(ids))
    local set, inlined, taken = {}, {}, {}
    for place, id in ipairs(ids) do
        local record, delivery, inline = convert(records[place], bodies[place] or '')
        set[#set + 1] = id
        set[#set + 1] = record
        inlined[#inlined + 1] = inline and id or nil
        if delivery then
            taken[#taken + 1] = id
            taken[#taken + 1] = delivery
        end
    end
    send('HSET', base .. ':t', set)
    send('HDEL', base .. ':b', inlined)
    send('HSET', base .. ':x', taken)
end

-- Converts a tube in one step, however many tasks it has. Answers its numbers.
function earlier.upgrade(base)
    local numbers, ids, some = redis.call('GET', base .. ':n'), redis.call('HKEYS', base .. ':t'), {}
    redis.call('UNLINK', base .. ':x')
    for place, id in ipairs(ids) do
        some[#some + 1] = id
        if #some == OLD_STEP or place == #ids then
            convert_some(base, some)
            some = {}
        end
    end
    redis.call('SET', base .. ':m', numbers)
    redis.call('UNLINK', base .. ':n')
    return numbers
end
