-- Lists tasks page by page, and writes nothing. What is expired and not removed yet is not listed.
--
-- No key has all tasks in the order of ids. If few tasks are in the states of a page, their ids are read and the smallest are selected.
-- Otherwise one id after the other is looked up: ids are dense unless most tasks between old and new ones are finished. Such gaps are
-- skipped; after many gaps all ids are read. Ids are compared as numbers, because Lua compares strings in the order of the locale.

-- After how many ids without a task a gap is searched for its end, and how many gaps are skipped.
local MISSES_MAX, GAPS_MAX = 2000, 16
-- Most priorities in which the end of a gap is searched, and most due tasks that are searched for expired ones.
local PRIORITIES_MAX, DUE_MAX = 64, 8192
-- The states of a list as bits.
local READY_BIT, TAKEN_BIT, DELAYED_BIT, BURIED_BIT, DONE_BIT = 1, 2, 4, 8, 16
local BITS = { [READY] = READY_BIT, [DELAYED] = DELAYED_BIT, [GATED] = DELAYED_BIT, [BURIED] = BURIED_BIT, [DEAD_LETTER] = BURIED_BIT }
-- Limit, states or this, first id; in the order of the queue whether the page begins after a place (priority and id), and that place. The
-- key follows, if only tasks with it are listed.
local LIST = '<I4BdBc16'
local KEY_AT = 32
local QUEUE_ORDER = 255
-- The number of ids in a block of done tasks.
local BLOCK_IDS = 256

-- Whether the next tick removes a task, unless it is taken or delayed.
local function is_expired(tube, record)
    return struct.unpack('<d', record, EXPIRES_AT) <= tube.now
end

local function is_listed(tube, states, record, delivery)
    if delivery then
        return has(states, TAKEN_BIT)
    end
    local state = string.byte(record)
    return has(states, BITS[state]) and (state == DELAYED or not is_expired(tube, record))
end

-- Adds those of these ids, which are in order, that belong to the page, until it is full. Answers how many of the ids have no task.
local function look_up(tube, page, ids)
    local listed, misses = page.listed, 0
    for first = 1, #ids, VALUES_MAX do
        local names = {}
        for place = first, math.min(first + VALUES_MAX - 1, #ids) do
            names[#names + 1] = struct.pack('>I8', ids[place])
        end
        local records = redis.call('HMGET', tube.base .. ':t', unpack(names))
        local deliveries = redis.call('HMGET', tube.base .. ':x', unpack(names))
        for place, record in ipairs(records) do
            if #listed == page.limit then
                return misses
            end
            misses = misses + (record and 0 or 1)
            if record and is_listed(tube, page.states, record, deliveries[place]) then
                listed[#listed + 1] = names[place] .. string.sub(record, PRI_AT, PRI_AT + 7)
            end
        end
    end
    return misses
end

-- The smallest of these ids from this one on, in order, at most so many.
local function smallest(ids, from, size)
    local found, before = {}, math.huge
    local function cut()
        table.sort(found)
        for place = #found, size + 1, -1 do
            found[place] = nil
        end
    end
    for place = 1, #ids do
        local id = ids[place]
        if id >= from and id < before then
            found[#found + 1] = id
            if #found == 2 * size then
                cut()
                before = found[size]
            end
        end
    end
    cut()
    return found
end

-- Adds the tasks of the page among these ids, which are in no order. If few of them are in the states of the page, each step looks at more
-- than the one before.
local function look_among(tube, page, ids)
    local from, size = page.from, math.max(page.limit, VALUES_MAX)
    while #page.listed < page.limit do
        local some = smallest(ids, from, size)
        if #some == 0 then
            return
        end
        look_up(tube, page, some)
        from, size = some[#some] + 1, size * 2
    end
end

-- The ids from this one on at the end of the members of these lists, each once.
local function ids_of(lists, from)
    local ids, seen = {}, #lists > 1 and {}
    for _, members in ipairs(lists) do
        for place = 1, #members do
            local member = members[place]
            local id = member == TALL and -1 or struct.unpack('>I8', member, #member - 7)
            if id >= from and not (seen and seen[id]) then
                ids[#ids + 1] = id
                if seen then
                    seen[id] = true
                end
            end
        end
    end
    return ids
end

-- Whether these members of the deadlines contain all delayed tasks: one that is never due has no deadline.
local function has_all_delayed(tube, members)
    local delayed = 0
    for first = 1, #members, VALUES_MAX do
        local last = math.min(first + VALUES_MAX - 1, #members)
        for _, record in ipairs(redis.call('HMGET', tube.base .. ':t', unpack(members, first, last))) do
            delayed = delayed + (record and string.byte(record) == DELAYED and 1 or 0)
        end
    end
    return delayed == tube.numbers[DELAYED_COUNT]
end

-- The ids of some tasks among which are all of the page, if these are few of all tasks. Gated tasks have no key of their own.
local function few_ids(tube, page, all)
    local states, base, keys, lists = page.states, tube.base, {}, {}
    if has(states, READY_BIT) then
        keys[#keys + 1] = base .. (tube.options.subqueues and ':q' or ':r')
    end
    if has(states, DELAYED_BIT) and tube.numbers[DELAYED_COUNT] > 0 then
        if tube.options.semaphore ~= '' then
            return nil
        end
        keys[#keys + 1] = base .. ':w'
    end
    if has(states, BURIED_BIT) then
        keys[#keys + 1] = base .. ':d'
    end
    local takes = has(states, TAKEN_BIT)
    local size = takes and redis.call('HLEN', base .. ':x') or 0
    for _, key in ipairs(keys) do
        size = size + redis.call('ZCARD', key)
    end
    if size * 8 >= all then
        return nil
    end
    for place, key in ipairs(keys) do
        lists[place] = redis.call('ZRANGE', key, '0', '-1')
        if key == base .. ':w' and not has_all_delayed(tube, lists[place]) then
            return nil
        end
    end
    if takes then
        lists[#lists + 1] = redis.call('HKEYS', base .. ':x')
    end
    return ids_of(lists, page.from)
end

-- The smallest id from this one on in an order of places (priority and id); nothing if the order has too many priorities.
local function first_in(order, from)
    local first, bound, name = math.huge, '-', struct.pack('>I8', from)
    for _ = 1, PRIORITIES_MAX do
        local pri = redis.call('ZRANGEBYLEX', order, bound, '+', 'LIMIT', 0, 1)[1]
        if not pri then
            return first
        end
        pri = string.sub(pri, 1, 8)
        local place = redis.call('ZRANGEBYLEX', order, '[' .. pri .. name, '[' .. pri .. LAST_ID, 'LIMIT', 0, 1)[1]
        first = math.min(first, place and struct.unpack('>I8', place, 9) or math.huge)
        bound = '(' .. pri .. LAST_ID
    end
end

-- The ids of taken and delayed tasks, and of others with a deadline; nothing if these are many of all tasks, or if some are not known.
local function unordered_ids(tube, page, all)
    local base, delayed = tube.base, tube.numbers[DELAYED_COUNT] > 0
    local size = redis.call('HLEN', base .. ':x') + (delayed and redis.call('ZCARD', base .. ':w') or 0)
    if size * 4 > all then
        return nil
    end
    local members = delayed and redis.call('ZRANGE', base .. ':w', '0', '-1')
    if members and not has_all_delayed(tube, members) then
        return nil
    end
    return ids_of({ redis.call('HKEYS', base .. ':x'), members or nil }, page.from)
end

-- The first id that is not in a gap; nothing if it cannot be found without reading all ids.
local function end_of_gap(tube, page, all)
    if tube.options.subqueues or tube.options.semaphore ~= '' then
        return nil
    end
    local from, ready, buried = page.from, first_in(tube.base .. ':r', page.from), first_in(tube.base .. ':d', page.from)
    page.unordered = page.unordered or unordered_ids(tube, page, all)
    if not ready or not buried or not page.unordered then
        return nil
    end
    local first = math.min(ready, buried)
    for _, id in ipairs(page.unordered) do
        first = id >= from and math.min(first, id) or first
    end
    return first
end

local function list_by_id(tube, page)
    local all, next_id, misses, gaps = total(tube), tube.numbers[NEXT_ID], 0, 0
    local few, size = few_ids(tube, page, all), page.limit
    if few then
        return look_among(tube, page, few)
    end
    while #page.listed < page.limit and page.from < next_id do
        local ids = {}
        for item = 1, math.min(size, next_id - page.from) do
            ids[item] = page.from + item - 1
        end
        misses, size = misses + look_up(tube, page, ids), VALUES_MAX
        page.from = page.from + #ids
        if misses >= math.min(MISSES_MAX, all) and #page.listed < page.limit then
            local first = gaps < GAPS_MAX and end_of_gap(tube, page, all)
            if not first then
                return look_among(tube, page, ids_of({ redis.call('HKEYS', tube.base .. ':t') }, page.from))
            end
            page.from, misses, gaps = first, 0, gaps + 1
        end
    end
end

-- Adds those of the ids of a block from this one on whose tasks are done and not over age.
local function look_up_done(tube, block, from, found)
    local ids, keep = {}, tube.options.keep_done
    for id = math.max(block * BLOCK_IDS, from), block * BLOCK_IDS + BLOCK_IDS - 1 do
        ids[#ids + 1] = struct.pack('>I8', id)
    end
    for place, ended in ipairs(redis.call('ZMSCORE', tube.base .. ':e', unpack(ids))) do
        if ended and later(tonumber(ended), keep) > tube.now then
            found[#found + 1] = ids[place]
        end
    end
end

-- The ids of done tasks from this one on, in order, at least so many if there are.
local function done_ids(tube, from, limit)
    local blocks, found = redis.call('ZRANGE', tube.base .. ':i', '0', '-1'), {}
    for place, block in ipairs(blocks) do
        blocks[place] = struct.unpack('>I8', '\0' .. block)
    end
    local first = math.floor(from / BLOCK_IDS)
    while #found < limit do
        local some = smallest(blocks, first, limit)
        if #some == 0 then
            break
        end
        for _, block in ipairs(some) do
            if #found < limit then
                look_up_done(tube, block, from, found)
            end
        end
        first = some[#some] + 1
    end
    return found
end

-- The ids of done tasks with this key from this one on, in order, that are not over age.
local function done_ids_of(tube, key, from)
    local found, keep = {}, tube.options.keep_done
    for _, id in ipairs(keyring.done_ids(tube, key)) do
        local ended = struct.unpack('>I8', id) >= from and redis.call('ZSCORE', tube.base .. ':e', id)
        if ended and later(tonumber(ended), keep) > tube.now then
            found[#found + 1] = id
        end
    end
    return found
end

-- Adds done tasks of these ids, which are in order, to the page, which is in order.
local function add_done(tube, page, ids)
    local before, merged, next_one = page.listed, {}, 1
    for first = 1, math.min(#ids, page.limit), VALUES_MAX do
        local last = math.min(first + VALUES_MAX - 1, #ids)
        for place, record in ipairs(redis.call('HMGET', tube.base .. ':k', unpack(ids, first, last))) do
            local id = ids[first + place - 1]
            while before[next_one] and struct.unpack('>I8', before[next_one]) < struct.unpack('>I8', id) do
                merged[#merged + 1] = before[next_one]
                next_one = next_one + 1
            end
            merged[#merged + 1] = record and id .. string.sub(record, PRI_AT, PRI_AT + 7) or nil
        end
    end
    for place = next_one, #before do
        merged[#merged + 1] = before[place]
    end
    for place = #merged, page.limit + 1, -1 do
        merged[place] = nil
    end
    page.listed = merged
end

-- Whether a place (priority and id) comes before another one.
local function precedes(one, other)
    for place = 1, 16 do
        local left, right = string.byte(one, place), string.byte(other, place)
        if left ~= right then
            return left < right
        end
    end
    return false
end

-- The first places in a part of an order whose tasks are not expired, at most so many; `skip` is the length of what precedes a place
-- in a member of the order.
local function unexpired(tube, order, from, to, skip, size)
    local places = {}
    while #places < size do
        local members, ids = redis.call('ZRANGEBYLEX', order, from, to, 'LIMIT', 0, math.max(size, TAKE_STEP)), {}
        if #members == 0 then
            return places
        end
        for item, member in ipairs(members) do
            ids[item] = string.sub(member, skip + 9)
        end
        for item, record in ipairs(redis.call('HMGET', tube.base .. ':t', unpack(ids))) do
            if #places < size and record and not is_expired(tube, record) then
                places[#places + 1] = string.sub(members[item], skip + 1)
            end
        end
        from = '(' .. members[#members]
    end
    return places
end

-- The sub-queues whose first task is expired. At most so many tasks whose deadline has passed are looked at: the next tick changes them.
local function expired_subqueues(tube)
    local due = redis.call('ZRANGEBYSCORE', tube.base .. ':w', '-inf', score_text(tube.now), 'LIMIT', 0, DUE_MAX)
    local keys = {}
    load(tube, due)
    for _, id in ipairs(due) do
        local task = tube.tasks[id]
        if task and task.state == READY and task.expires <= tube.now
            and redis.call('HGET', tube.base .. ':h', task.subqueue) == task.pri .. id then
            keys[#keys + 1] = task.subqueue
        end
    end
    return keys
end

-- Lists what could be taken. An expired task does not hide the next one of its sub-queue.
local function list_queue(tube, page, after)
    local places = unexpired(tube, tube.base .. ':r', after and '(' .. after or '-', '+', 0, page.limit)
    local keys = tube.options.subqueues and tube.options.times and expired_subqueues(tube) or {}
    for _, key in ipairs(keys) do
        local prefix = subqueue_prefix(key)
        local place = unexpired(tube, tube.base .. ':q', '[' .. prefix, '[' .. prefix .. HIGHEST, #prefix, 1)[1]
        if place and (not after or precedes(after, place)) then
            places[#places + 1] = place
        end
    end
    if #keys > 0 then
        table.sort(places, precedes)
    end
    for item = 1, math.min(#places, page.limit) do
        page.listed[item] = string.sub(places[item], 9) .. string.sub(places[item], 1, 8)
    end
end

-- Adds the task that holds this key, if it belongs to the page.
local function list_holder(tube, page, key)
    keyring.load(tube, { key })
    local id, ending = keyring.holder(tube, key)
    local number = id and not ending and struct.unpack('>I8', id)
    if number and number >= page.from then
        look_up(tube, page, { number })
    end
end

-- Answers ids, each followed by its priority.
function verbs.list(tube, header, call)
    local page, begins_after, place, key = { listed = {} }, 0, '', string.sub(header, KEY_AT)
    page.limit, page.states, page.from, begins_after, place = struct.unpack(LIST, header, 2)
    flush(tube)
    if page.states == QUEUE_ORDER then
        list_queue(tube, page, begins_after == 1 and place)
    else
        local from = page.from
        if page.states ~= DONE_BIT and key ~= '' then
            list_holder(tube, page, key)
        elseif page.states ~= DONE_BIT then
            list_by_id(tube, page)
        end
        if has(page.states, DONE_BIT) and tube.options.keep_done >= 0 then
            add_done(tube, page, key ~= '' and done_ids_of(tube, key, from) or done_ids(tube, from, page.limit))
        end
    end
    call:answer('\0' .. table.concat(page.listed))
end
