-- Unique keys of a tube; the rules are in `keys.rs` of the core. y has the holder of each key, also after its end, until when it is held; j
-- the ids and keys of ended tasks by that moment; z the keys and ids of done tasks that are kept. The key of a task is in its
-- record, in an extension that is also how a put gives it.
--
-- The ring of a tube is what a call knows of its keys, and what it has to write. It is written at the end of the call. The endings of a
-- plain tube are the keys of tasks that end in this call, listed as Redis needs them. There is a ring or there are endings: before one
-- begins, the other is written.

-- An extension begins with one of these: it has an own number of attempts, a key, or both.
local OWN_ATTEMPTS, BOTH, KEY = 35, 38, 64
-- The options of a put that gives only an extension, and the position of the key, counted from them, if that has only a key.
local ONLY_EXTENSION, KEY_AT = 128, 13
-- Redis scans small hashes as long as no field is long. No key has a control character.
local LARGE = '\0' .. TALL
-- Free keys of ended tasks are removed in groups: when the clock is at a multiple of this.
local CLEANUP_EVERY = 10 * 1000000
local ENDED_MAX = {{ENDED_KEYS_MAX}}

-- Reads the extension at this position of a text: the task's own number of attempts, its key, and for how long that is held after the end.
-- Answers the position behind it.
function keyring.read_extension(task, text, place)
    local first, sign = place, string.byte(text, place)
    place = place + 1
    if sign == OWN_ATTEMPTS or sign == BOTH then
        task.most, place = struct.unpack('<I4', text, place)
    end
    if sign ~= OWN_ATTEMPTS then
        task.unique_for, task.key, place = struct.unpack('<dBc0', text, place)
    end
    task.extension = string.sub(text, first, place - 1)
    return place
end

-- The extension of a task with a key.
local function extension_of(task)
    local beginning = task.most and '&' .. struct.pack('<I4', task.most) or '@'
    return beginning .. struct.pack('<dBc0', task.unique_for, #task.key, task.key)
end

local function ring_of(tube)
    local ring = tube.ring
    if not ring then
        keyring.flush(tube)
        ring = { holders = {}, noted = {}, ended = {} }
        tube.ring = ring
    end
    return ring
end

-- Reads the holders of these keys, unless they are known.
function keyring.load(tube, keys)
    local holders, unknown = ring_of(tube).holders, {}
    for place = 1, #keys do
        if holders[keys[place]] == nil then
            unknown[#unknown + 1] = keys[place]
        end
    end
    for first = 1, #unknown, VALUES_MAX do
        local last = math.min(first + VALUES_MAX - 1, #unknown)
        for place, text in ipairs(redis.call('HMGET', tube.base .. ':y', unpack(unknown, first, last))) do
            holders[unknown[first + place - 1]] = text
        end
    end
end

-- The task that holds a loaded key, or held it last, and until when it holds it, if it has ended.
function keyring.holder(tube, key)
    local text = tube.ring.holders[key]
    if not text then
        return nil
    end
    -- Earlier programs wrote the moment behind the id, too.
    local id = string.sub(text, 1, 8)
    load(tube, { id })
    if tube.tasks[id] then
        return id
    end
    local moment = tube.ring.ended[id .. key]
    if moment == nil then
        moment = redis.call('ZSCORE', tube.base .. ':j', id .. key)
    end
    if moment then
        return id, tonumber(moment)
    end
end

local function set(tube, key, text)
    local ring = ring_of(tube)
    ring.holders[key], ring.noted[key] = text, text
end

-- A task gets a key.
function keyring.hold(tube, key, id)
    set(tube, key, id)
end

-- The key of an ended task is held until this moment.
function keyring.hold_ended(tube, key, id, moment)
    local ring = ring_of(tube)
    ring.ended[id .. key], ring.has_new = moment, true
end

-- A key that an ended task held is free.
function keyring.forget(tube, key, id)
    set(tube, key, false)
    tube.ring.ended[id .. key] = false
end

-- A task with a key ends now, or ended when its time to live was over.
function keyring.finish(tube, id, task)
    local is_over = task.state ~= TAKEN and task.expires <= tube.now
    local moment = (is_over and task.expires or tube.now) + task.unique_for
    if moment > tube.now then
        keyring.hold_ended(tube, task.key, id, moment)
    else
        set(tube, task.key, false)
    end
end

-- A taken task of a plain tube ends now; its record has an extension.
function keyring.finish_record(tube, id, record)
    local sign, endings = string.byte(record, RECORD_BYTES + 1), tube.endings
    if sign == OWN_ATTEMPTS then
        return
    elseif not endings then
        keyring.flush(tube)
        endings = { moments = {}, free = {}, span = -1 }
        tube.endings = endings
    end
    local span, key = struct.unpack('<dBc0', record, RECORD_BYTES + (sign == BOTH and 6 or 2))
    if span == 0 then
        endings.free[#endings.free + 1] = key
        return
    elseif span ~= endings.span then
        -- Most keys are held for the same time.
        endings.span, endings.score = span, score_text(tube.now + span)
    end
    local moments = endings.moments
    local size = #moments
    moments[size + 1], moments[size + 2] = endings.score, id .. key
end

-- Removes keys of ended tasks, each as its id and the key.
local function remove_ended(tube, members)
    local keys = {}
    for place, member in ipairs(members) do
        keys[place] = string.sub(member, 9)
    end
    send('HDEL', tube.base .. ':y', keys)
    send('ZREM', tube.base .. ':j', members)
end

-- Marks a tube whose tasks have keys or their own number of attempts.
function keyring.mark(tube)
    if not tube.options.keyed then
        change_options(tube, { flags = tube.options.flags + keyring.USED })
        redis.call('HSET', tube.base .. ':y', LARGE, '')
    end
end

-- Forgets all keys of a tube, because all its tasks are removed.
function keyring.empty(tube)
    local base, o = tube.base, tube.options
    redis.call('UNLINK', base .. ':y', base .. ':j', base .. ':z')
    change_options(tube, { flags = o.flags - keyring.USED - (o.ended_keys and keyring.ENDED or 0) })
    tube.ring, tube.endings = nil, nil
end

-- Keys of ended tasks were added. Those that are too many are free at once, the one first that would be free first.
local function limit_ended(tube)
    local base = tube.base
    if not tube.options.ended_keys then
        change_options(tube, { flags = tube.options.flags + keyring.ENDED })
    end
    local excess = redis.call('ZCARD', base .. ':j') - ENDED_MAX
    if excess > 0 then
        -- The first ones may be free by now.
        local free = redis.call('ZCOUNT', base .. ':j', '-inf', string.format('%.0f', tube.now))
        tube.freed_early = (tube.freed_early or 0) + math.max(excess - free, 0)
    end
    for first = 1, excess, VALUES_MAX do
        remove_ended(tube, redis.call('ZRANGE', base .. ':j', 0, math.min(VALUES_MAX, excess - first + 1) - 1))
    end
end

-- Writes the ring, or the endings.
function keyring.flush(tube)
    local ring, endings, base = tube.ring, tube.endings, tube.base
    tube.ring, tube.endings = nil, nil
    if endings then
        send('ZADD', base .. ':j', endings.moments)
        send('HDEL', base .. ':y', endings.free)
    end
    if ring and next(ring.noted) then
        write_hash(base .. ':y', ring.noted)
    end
    if ring and next(ring.ended) then
        write_order(base .. ':j', ring.ended)
    end
    if ring and ring.has_new or endings and #endings.moments > 0 then
        limit_ended(tube)
    end
end

-- When a tick has to remove keys of ended tasks.
function keyring.due(tube)
    local first = redis.call('ZRANGE', tube.base .. ':j', '0', '0', 'WITHSCORES')[2]
    if not first then
        return NEVER
    end
    return math.ceil(tonumber(first) / CLEANUP_EVERY) * CLEANUP_EVERY
end

-- Removes free keys of ended tasks, at most so many. Answers how many.
function keyring.trim(tube, limit)
    keyring.flush(tube)
    local order, removed = tube.base .. ':j', 0
    local last = string.format('%.0f', tube.now - tube.now % CLEANUP_EVERY)
    while removed < limit do
        local members = redis.call('ZRANGEBYSCORE', order, '-inf', last, 'LIMIT', 0, math.min(limit - removed, VALUES_MAX))
        if #members == 0 then
            break
        end
        remove_ended(tube, members)
        removed = removed + #members
    end
    if redis.call('EXISTS', order) == 0 then
        change_options(tube, { flags = tube.options.flags - keyring.ENDED })
    end
    return removed
end

-- The member of z for a done task with this record; nothing if it has no key, or no record because another program removed that.
function keyring.done_member(id, record)
    if #record <= RECORD_BYTES or struct.unpack('<d', record, ATTEMPTS_AT) % FAILED < EXTENDED then
        return nil
    end
    local task = {}
    keyring.read_extension(task, record, RECORD_BYTES + 1)
    return task.key and task.key .. '\0' .. id
end

-- The ids of done tasks with this key, in order.
function keyring.done_ids(tube, key)
    local found = redis.call('ZRANGEBYLEX', tube.base .. ':z', '[' .. key .. '\0', '[' .. key .. '\0' .. LAST_ID)
    for place, member in ipairs(found) do
        found[place] = string.sub(member, -8)
    end
    return found
end

-- The keys of the tasks of a put, if each has a key and no other option, and for each how its extension begins: most are equal.
local function read_keys(header, size)
    local keys, beginnings, place, last, beginning, length = {}, {}, PUT_ITEMS_AT, nil, nil, 0
    for item = 1, size do
        local options = string.sub(header, place, place + KEY_AT - 2)
        if options ~= last then
            local given, _, sign = string.byte(options, 1, 3)
            if given ~= ONLY_EXTENSION or sign ~= KEY then
                return nil
            end
            last, beginning, length = options, string.sub(options, 3), string.byte(options, KEY_AT - 1)
        end
        beginnings[item] = beginning
        place = place + KEY_AT - 1 + length
        keys[item] = string.sub(header, place - length, place - 1)
    end
    return keys, beginnings
end

-- Whether one of these keys is stored.
local function has_stored(order, keys)
    for first = 1, #keys, VALUES_MAX do
        local found = redis.call('HMGET', order, unpack(keys, first, math.min(first + VALUES_MAX - 1, #keys)))
        for place = 1, #found do
            if found[place] then
                return true
            end
        end
    end
    return false
end

-- Gives keys to new tasks, if they are free and different; otherwise nothing changes. They are written at once, because only then Redis
-- says how many are new.
local function hold_all(tube, keys, ids)
    local order, size = tube.base .. ':y', #keys
    keyring.flush(tube)
    if size == 1 then
        return redis.call('HSETNX', order, keys[1], ids[1]) == 1
    elseif has_stored(order, keys) then
        return false
    end
    local values, added = {}, 0
    for place = 1, size do
        values[2 * place - 1], values[2 * place] = keys[place], ids[place]
    end
    for first = 1, #values, VALUES_MAX do
        added = added + redis.call('HSET', order, unpack(values, first, math.min(first + VALUES_MAX - 1, #values)))
    end
    if added < size then
        send('HDEL', order, keys)
    end
    return added == size
end

-- The options of each task of a put; the holders of their keys are loaded.
local function read_items(tube, header, size)
    local items, keys, place = {}, {}, PUT_ITEMS_AT
    for item = 1, size do
        items[item], place = read_new(header, place)
        keys[#keys + 1] = items[item].key
    end
    keyring.load(tube, keys)
    return items
end

-- Whether a loaded key is held.
local function is_held(tube, key)
    local id, ending = keyring.holder(tube, key)
    if not id or ending then
        return id and ending > tube.now
    end
    local task = tube.tasks[id]
    return task.state == TAKEN or task.expires > tube.now or task.expires + task.unique_for > tube.now
end

-- How many of the tasks a put would add.
local function count_added(tube, items)
    local added, new = 0, {}
    for _, item in ipairs(items) do
        if not item.key then
            added = added + 1
        elseif not new[item.key] and not is_held(tube, item.key) then
            added, new[item.key] = added + 1, true
        end
    end
    return added
end

-- Gives a ready, delayed or gated task the content of a put.
local function replace(tube, id, task, new, body)
    local fresh = make_task(tube, new, body)
    leave(tube, id, task)
    if not fresh.body then
        tube.b[id] = body
    elseif not task.body then
        tube.b[id] = false
    end
    task.state, task.moment, task.pri, task.expires, task.ttr = fresh.state, fresh.moment, fresh.pri, fresh.expires, fresh.ttr
    task.bytes, task.body, task.own, task.unique_for = fresh.bytes, fresh.body, fresh.own, new.unique_for
    task.since = fresh.state == READY and tube.now or nil
    task.extension = extension_of(task)
    enter(tube, id, task)
end

-- The holder of the key of a put, if it is held; a task whose time to live is over is removed first.
local function find_holder(tube, key, expired)
    local id, ending = keyring.holder(tube, key)
    local task = id and tube.tasks[id]
    if task and task.state ~= TAKEN and task.expires <= tube.now then
        remove(tube, id, task)
        count(tube, 'delete')
        count(tube, 'ttl')
        expired[#expired + 1] = id
        id, ending = keyring.holder(tube, key)
    end
    if ending and ending <= tube.now then
        keyring.forget(tube, key, id)
        return nil
    end
    return id
end

-- The state of a task in the answer of a put.
local STATES = { [READY] = 0, [TAKEN] = 1, [DELAYED] = 2, [GATED] = 2, [BURIED] = 3, [DEAD_LETTER] = 3 }
local DONE_STATE, EXISTING = 6, 128
-- A single put that found no room has no id.
local FULL = '\255' .. NO_LEASE

-- Adds a task with these options. Answers its id.
local function add(tube, new, body)
    local id, task = struct.pack('>I8', tube.numbers[NEXT_ID]), make_task(tube, new, body)
    tube.numbers[NEXT_ID] = tube.numbers[NEXT_ID] + 1
    enter(tube, id, task)
    if not task.body then
        tube.b[id] = body
    end
    if new.key then
        keyring.hold(tube, new.key, id)
    end
    count(tube, 'put')
    return id
end

-- Puts one task. Answers the id of the task that is added or holds the key, and whether that existed; nothing if a single put finds no room.
local function put_one(tube, new, body, expired, capacity)
    local id = new.key and find_holder(tube, new.key, expired)
    if not id then
        return (not capacity or total(tube) < capacity) and add(tube, new, body), false
    end
    local task = tube.tasks[id]
    if new.replaces and task and (task.state == READY or task.state == DELAYED or task.state == GATED) then
        replace(tube, id, task, new, body)
    end
    return id, true
end

local function placed_text(tube, id, existed)
    local task = tube.tasks[id]
    return string.char((task and STATES[task.state] or DONE_STATE) + (existed and EXISTING or 0)) .. id
end

-- Puts tasks one after the other.
local function put_slowly(tube, call, items, first, singles)
    local texts, moved, capacity = {}, {}, singles and tube.options.capacity
    for item, new in ipairs(items) do
        local id, existed = put_one(tube, new, call.args[first + item - 1], moved, capacity)
        texts[item] = id and placed_text(tube, id, existed) or FULL
        moved[#moved + 1] = id or nil
    end
    if tube.options.semaphore == '' then
        return table.concat(texts)
    end
    -- The semaphore decides at the end.
    gates.regate(tube, moved)
    for item, text in ipairs(texts) do
        local id = string.sub(text, 2)
        if tube.tasks[id] then
            texts[item] = placed_text(tube, id, string.byte(text) >= EXISTING)
        end
    end
    return table.concat(texts)
end

-- Puts tasks with keys and no other options, which are most, into a plain tube. Nothing is done if a key is held, or is not alone.
local function put_plainly(tube, call, header, first, size)
    local ids, keys, beginnings = plain.extended_ids(tube, size), read_keys(header, size)
    if not ids or not keys or not hold_all(tube, keys, ids) then
        return nil
    end
    plain.put_keyed(tube, ids, keys, beginnings, call.args, first)
    tube.numbers[NEXT_ID] = tube.numbers[NEXT_ID] + size
    count(tube, 'put', size)
    return '\0' .. table.concat(ids, '\0')
end

-- Puts tasks of which some have a key or their own number of attempts. Answers the state and the id of each.
function keyring.put(tube, call, header, first, size, singles)
    local capacity, is_near_end = tube.options.capacity, tube.numbers[NEXT_ID] + size > TASK_ID_MAX
    keyring.mark(tube)
    local placed = tube.options.plain and not capacity and not is_near_end and size > 0
        and put_plainly(tube, call, header, first, size)
    if not placed then
        plain.leave(tube)
        local items = read_items(tube, header, size)
        local added = (capacity or is_near_end) and count_added(tube, items) or 0
        if capacity and not singles and added > math.max(capacity - total(tube), 0) then
            return call:answer('\2' .. tube.options.capacity_bytes)
        elseif is_near_end and tube.numbers[NEXT_ID] + added > TASK_ID_MAX then
            return call:answer('\3')
        end
        placed = put_slowly(tube, call, items, first, singles)
    end
    call:answer('\0' .. (singles and tube.options.capacity_bytes or '') .. placed)
end
