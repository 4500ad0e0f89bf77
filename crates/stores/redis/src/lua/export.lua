-- Exports what no other call shows, when a store is copied. Nothing is written, so tubes are not restarted after all servers were gone.

local PAGE = 5000

-- Fields of a hash from a cursor on, and the next cursor.
local function some_fields(key, cursor)
    local found = redis.call('HSCAN', key, cursor, 'COUNT', PAGE)
    local fields = {}
    for place = 1, #found[2], 2 do
        fields[#fields + 1] = found[2][place]
    end
    return fields, found[1]
end

local exports = {}

-- The version of the stored format, the epoch, and a lease number that was not used yet.
function exports.R(base)
    local stored = redis.call('MGET', base .. ':format', base .. ':epoch', base .. ':lease')
    return { tonumber(stored[1] or 0), tonumber(stored[2] or 0), stored[3] or '0' }
end

-- Some ids of a tube, in no order; an id may occur twice.
function exports.I(base, cursor)
    local ids, next_cursor = some_fields(base .. ':t', cursor)
    return { next_cursor, table.concat(ids) }
end

-- Some ids of done tasks, in the same way.
function exports.K(base, cursor)
    local found, ids = redis.call('ZSCAN', base .. ':e', cursor, 'COUNT', PAGE), {}
    for place = 1, #found[2], 2 do
        ids[#ids + 1] = found[2][place]
    end
    return { found[1], table.concat(ids) }
end

-- Some keys of ended tasks: the id, until when it is held, and the key.
function exports.J(base, cursor)
    local found, keys = redis.call('ZSCAN', base .. ':j', cursor, 'COUNT', PAGE), {}
    for place = 1, #found[2], 2 do
        local member = found[2][place]
        keys[#keys + 1] = string.sub(member, 1, 8) .. struct.pack('<dI2', tonumber(found[2][place + 1]), #member - 8) .. string.sub(member, 9)
    end
    return { found[1], table.concat(keys) }
end

-- The bucket of a rate limit; empty if it is full since ever.
function exports.B(base)
    return { redis.call('GET', base .. ':l') or '' }
end

-- The configuration of a semaphore, its last grant, and when to look again; empty where there is none.
function exports.S(_, _, s)
    if not s then
        return {}
    end
    return { s.raw, struct.pack('<dd', s.grants, s.recheck) }
end

-- Some entries of a semaphore.
function exports.P(base, cursor, s)
    local tasks, next_cursor = some_fields(base .. ':p', cursor)
    for place, task in ipairs(tasks) do
        local p = sem.find(s, task)
        tasks[place] = struct.pack('<I2c0BBddddddddd', #task, task, p.status, p.declined, p.priority, p.seq, p.enqueued, p.until_when,
            p.grant, p.granted, p.lease_until, p.ack_by, p.revoke_at)
    end
    return { next_cursor, table.concat(tasks) }
end

-- Some events of a semaphore.
function exports.E(base, cursor, s)
    local events, next_cursor = some_fields(base .. ':e', cursor)
    for place, number in ipairs(events) do
        local event = outbox.get(s, number)
        events[place] = struct.pack('<I2c0BI4ddd', #event.task, event.task, event.kind, event.attempts, event.next_at, event.grant,
            event.stamp) .. number
    end
    return { next_cursor, table.concat(events) }
end

-- After the arguments of every call: what to export, and the cursor.
local function export(keys, args)
    local call, key = new_call(keys[1], args, true), nil
    if call.prefix then
        key = string.match(keys[1], '^{[^:]*:/(.*)}$')
    end
    return exports[args[6]](keys[1], args[7], key and sem.open(call, key))
end

redis.register_function({ function_name = NAME .. '_export', callback = export, flags = { 'no-writes', 'allow-oom' } })
