-- Shows where waiting tasks are in the queue. The orders know the rank of a member, so numbers are exact unless very many sub-queues
-- have tasks ahead.

local AHEAD_LOOKED_MAX, GATE_LOOKED_MAX = {{DELAYED_LOOKED_MAX}}, {{GATE_LOOKED_MAX}}
-- Most lookups in sub-queues for one command; of more tasks than that a sample is compared.
local LOOKUPS_MAX = 4096
-- Id, priority, flags, due, and the tasks ahead: of all, of its sub-queue, in the semaphore.
local POSITION = '<c8c8Bdddd'
local IS_DELAYED, IS_EXACT, IN_SUBQUEUE, IS_BUSY, IS_GATED = 1, 2, 4, 8, 16

-- The prefix of the first sub-queue with ready tasks from this bound on.
local function next_prefix(order, from)
    local member = redis.call('ZRANGEBYLEX', order, from, '+', 'LIMIT', 0, 1)[1]
    return member and string.sub(member, 1, 2 + struct.unpack('>I2', member))
end

-- The prefixes of all sub-queues with ready tasks; nothing if there are more than so many.
local function all_prefixes(order, most)
    local prefixes, prefix = {}, next_prefix(order, '-')
    while prefix do
        if #prefixes >= most then
            return nil
        end
        prefixes[#prefixes + 1] = prefix
        prefix = next_prefix(order, '(' .. prefix .. HIGHEST)
    end
    return prefixes
end

-- Priority and id of ready tasks of all sub-queues as numbers: of all tasks, or of one at an irregular place in each of many equal parts. At
-- regular places it could always be the same task of each sub-queue.
local function sample(order)
    local size, found = redis.call('ZCARD', order), { highs = {}, lows = {}, ids = {} }
    found.size = math.min(size, LOOKUPS_MAX)
    found.weight = size / found.size
    for item = 1, found.size do
        local rank = math.floor((item - 1 + math.random()) * found.weight)
        local member = redis.call('ZRANGE', order, rank, rank)[1]
        found.highs[item], found.lows[item], found.ids[item] = struct.unpack('>I4I4I8', member, #member - 15)
    end
    return found
end

local function ahead_in_sample(found, place)
    local ahead, high, low, id = 0, struct.unpack('>I4I4I8', place)
    local highs, lows, ids = found.highs, found.lows, found.ids
    for item = 1, found.size do
        if highs[item] < high or highs[item] == high and (lows[item] < low or lows[item] == low and ids[item] < id) then
            ahead = ahead + 1
        end
    end
    return math.floor(ahead * found.weight + 0.5)
end

-- How many ready tasks of a sub-queue are before a place.
local function ahead_in(order, prefix, place)
    return redis.call('ZLEXCOUNT', order, '[' .. prefix, '(' .. prefix .. place)
end

-- How many ready tasks of these sub-queues are before a place.
local function ahead_in_all(order, prefixes, place)
    local ahead = 0
    for _, prefix in ipairs(prefixes) do
        ahead = ahead + ahead_in(order, prefix, place)
    end
    return ahead
end

-- The prefixes of the sub-queues that may have ready tasks before a place: those whose first task is before it, and the busy ones. Nothing
-- if there are more than so many.
local function prefixes_before(tube, place, most)
    local base, prefixes, ids = tube.base, {}, {}
    if redis.call('ZLEXCOUNT', base .. ':r', '-', '(' .. place) + redis.call('SCARD', base .. ':u') > most then
        return nil
    end
    for item, key in ipairs(redis.call('SMEMBERS', base .. ':u')) do
        prefixes[item] = subqueue_prefix(key)
    end
    for item, head in ipairs(redis.call('ZRANGEBYLEX', base .. ':r', '-', '(' .. place)) do
        ids[item] = string.sub(head, 9)
    end
    load(tube, ids)
    for _, id in ipairs(ids) do
        prefixes[#prefixes + 1] = subqueue_prefix(tube.tasks[id].subqueue)
    end
    return prefixes
end

-- A function that answers how many ready tasks are before a place, and whether it is exact. It is called so many times.
local function counter_of(tube, size)
    if not tube.options.subqueues then
        return function(place)
            return redis.call('ZLEXCOUNT', tube.base .. ':r', '-', '(' .. place), true
        end
    end
    local order, most, found = tube.base .. ':q', math.floor(LOOKUPS_MAX / math.max(size, 1)), nil
    local prefixes = all_prefixes(order, most)
    if prefixes then
        return function(place)
            return ahead_in_all(order, prefixes, place), true
        end
    end
    return function(place)
        local few = prefixes_before(tube, place, most)
        if few then
            return ahead_in_all(order, few, place), true
        end
        found = found or sample(order)
        return ahead_in_sample(found, place), found.weight == 1
    end
end

-- The tasks among the ready ones that are expired and not removed yet, and whether these are all.
local function expired_ready(tube)
    local due = redis.call('ZRANGEBYSCORE', tube.base .. ':w', '-inf', score_text(tube.now), 'LIMIT', 0, AHEAD_LOOKED_MAX)
    local found = {}
    load(tube, due)
    for _, id in ipairs(due) do
        local task = tube.tasks[id]
        if task and task.state == READY then
            local place = task.pri .. id
            local order, member = ':r', place
            if tube.options.subqueues then
                order, member = ':q', subqueue_prefix(task.subqueue) .. place
            end
            -- A take may have removed it.
            if redis.call('ZSCORE', tube.base .. order, member) then
                found[#found + 1] = { place = place, subqueue = task.subqueue }
            end
        end
    end
    return found, #due < AHEAD_LOOKED_MAX
end

-- How many of these expired tasks are before a place, in all and in its sub-queue.
local function expired_before(expired, place, subqueue)
    local all, own = 0, 0
    for _, task in ipairs(expired) do
        if precedes(task.place, place) then
            all, own = all + 1, own + (task.subqueue == subqueue and 1 or 0)
        end
    end
    return all, own
end

-- The delayed tasks that are due first: priority, id and due time of each. Other tasks with a deadline are between them.
local function first_delayed(tube)
    local wanted, found, texts, first = tube.numbers[DELAYED_COUNT], 0, {}, 0
    while found < wanted and first < AHEAD_LOOKED_MAX do
        local members = redis.call('ZRANGE', tube.base .. ':w', first, first + VALUES_MAX / 2 - 1, 'WITHSCORES')
        if #members == 0 then
            break
        end
        local ids = {}
        for place = 1, #members, 2 do
            ids[#ids + 1] = members[place]
        end
        for place, record in ipairs(redis.call('HMGET', tube.base .. ':t', unpack(ids))) do
            if record and string.byte(record) == DELAYED then
                found = found + 1
                texts[found] = string.sub(record, PRI_AT, PRI_AT + 7) .. ids[place] .. struct.pack('<d', tonumber(members[2 * place]))
            end
        end
        first = first + #ids
    end
    return struct.pack('<I4', found) .. table.concat(texts)
end

-- How many waiting members of a semaphore are before an entry, whether or not it waits itself.
local function waiting_before(s, entry)
    local order, score = s.base .. ':w', string.format('%.17g', 0 - entry.priority)
    local low, high = redis.call('ZCOUNT', order, '-inf', '(' .. score), redis.call('ZCOUNT', order, '-inf', score)
    while low < high do
        local middle = math.floor((low + high) / 2)
        if struct.unpack('>I8', redis.call('ZRANGE', order, middle, middle)[1]) < entry.seq then
            low = middle + 1
        else
            high = middle
        end
    end
    return math.min(low, GATE_LOOKED_MAX)
end

-- How many get a grant before a task that waits for one; nothing if the tube has no semaphore.
local function gate_ahead(tube, id)
    local s = sem.open(tube.call, tube.options.semaphore)
    local entry = s and sem.find(s, gates.task(tube, id))
    return s and (entry and waiting_before(s, entry) or 0)
end

local function position(tube, id, task, shared)
    local place, flags, own, gate = task.pri .. id, 0, 0, false
    local gone, own_gone = expired_before(shared.expired, place, task.subqueue)
    if tube.options.subqueues then
        local prefix = subqueue_prefix(task.subqueue)
        own = ahead_in(tube.base .. ':q', prefix, place) - own_gone
        flags = flags + IN_SUBQUEUE + (is_busy(tube, task.subqueue) and IS_BUSY or 0)
    end
    if task.state == GATED then
        gate = gate_ahead(tube, id)
        flags = flags + (gate and IS_GATED or 0)
    end
    if task.state == DELAYED then
        flags = flags + IS_DELAYED
    end
    local ahead, is_exact = shared.ahead(place)
    if is_exact and shared.has_all_expired and (gate or 0) < GATE_LOOKED_MAX then
        flags = flags + IS_EXACT
    end
    return struct.pack(POSITION, id, task.pri, flags, task.moment, math.max(ahead - gone, 0), own, gate or 0)
end

-- Answers this clock, the delayed tasks that are due first, and the positions of those of these tasks that wait.
function verbs.positions(tube, header, call)
    local ids, texts = read_ids(header, 2), {}
    flush(tube)
    local expired, has_all_expired = expired_ready(tube)
    local shared = { expired = expired, has_all_expired = has_all_expired, ahead = counter_of(tube, #ids) }
    load(tube, ids)
    for _, id in ipairs(ids) do
        local task = tube.tasks[id]
        if task and (task.state == DELAYED or (task.state == READY or task.state == GATED) and task.expires > tube.now) then
            texts[#texts + 1] = position(tube, id, task, shared)
        end
    end
    call:answer('\0' .. struct.pack('<d', tube.now) .. first_delayed(tube) .. table.concat(texts))
end
