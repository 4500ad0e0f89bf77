-- Ends deliveries (ack, release, bury, fail), touches them, and runs other commands that change tasks.

local function read_items(header)
    local size, items, ids = struct.unpack('<I4', header, 3), {}, {}
    for place = 1, size do
        local item = {}
        item.id, item.holder, item.who, item.verb, item.span, item.counted =
            struct.unpack(ITEM, header, 7 + (place - 1) * ITEM_BYTES)
        items[place], ids[place] = item, item.id
    end
    local after = 7 + size * ITEM_BYTES
    if after <= #header then
        for _, item in ipairs(items) do
            if item.verb == FAIL then
                item.cause, after = struct.unpack('<I2c0', header, after)
            elseif item.verb == FAIL_BY_POLICY then
                item.verb = FAIL
                item.cause, item.seed, after = struct.unpack('<I2c0I4', header, after)
            elseif item.verb == ACK_WITH_RESULT then
                item.verb = ACK
                item.result, after = struct.unpack('<I4c0', header, after)
            end
        end
    end
    return items, ids
end

-- Whether a task is taken and the caller holds it.
local function is_held(tube, task, item)
    if task.state ~= TAKEN or task.moment <= tube.now then
        return false
    elseif item.holder == BY_LEASE then
        return task.lease == string.sub(item.who, 1, 8)
    elseif item.holder == BY_SESSION then
        return task.flags >= HAS_SESSION and task.session == item.who
    end
    return item.holder == BY_ANY_CALLER
end

local function bury(tube, id, task, cause)
    if task.state == BURIED or task.state == DEAD_LETTER then
        return
    end
    if cause then
        failures.add(tube, id, task, cause)
    end
    leave(tube, id, task)
    undeliver(task)
    task.state = BURIED
    enter(tube, id, task)
    -- Other tasks of its sub-queue may be ready now.
    tube.notify = true
    count(tube, 'bury')
end

local function touch(tube, id, task, more)
    if more == 0 then
        return
    end
    leave(tube, id, task)
    task.moment = later(task.moment, more)
    task.expires = later(task.expires, more)
    task.ttr = math.min(task.ttr + more, FOREVER)
    enter(tube, id, task)
    note_record(tube, id, task)
    count(tube, 'touch')
end

-- Finishes one item and answers the outcome; the task is shown as it is afterwards.
local function finish_one(tube, item, shown)
    local id, task = item.id, tube.tasks[item.id]
    if not task then
        return MISSING_ITEM
    end
    local buries = item.verb == BURY or item.verb == FAIL and item.span < 0
    if not (buries and item.holder == BY_ANY_CALLER) and not is_held(tube, task, item) then
        return STALE_ITEM
    end
    if item.verb == ACK then
        if shown then
            show(tube, shown, id, REASONS.finished)
        end
        local is_kept = tube.options.keep_done >= 0
        if is_kept then
            done_tasks.add(tube, id, task, item.result)
        end
        remove(tube, id, task, is_kept)
        count(tube, 'ack')
        return DONE_ITEM
    elseif buries then
        bury(tube, id, task, item.cause)
    elseif item.verb == RELEASE or item.verb == FAIL then
        local delay = item.span
        if item.seed and tube.options.retry then
            delay = pace.delay_of(tube, id, task, item.seed)
        end
        give_back(tube, id, task, tube.options.times and delay or 0, item.counted == 1, 'release', item.cause)
    else
        touch(tube, id, task, item.span)
    end
    if shown then
        show(tube, shown, id, reason_of(tube, task))
    end
    return DONE_ITEM
end

-- Whether a touch is not supported: a kind without times has none, except for deliveries with a given lease time.
local function has_wrong_touch(tube, items)
    for _, item in ipairs(items) do
        local task = item.verb == TOUCH and tube.tasks[item.id]
        if task and is_held(tube, task, item) and task.flags % 2 == 0 then
            return true
        end
    end
    return false
end

-- Shows tasks again that were ready before the semaphore decided.
local function show_gated(tube, shown)
    if tube.options.semaphore == '' then
        return
    end
    for place, head in ipairs(shown.heads) do
        local id, reason, state = struct.unpack('c8BB', head)
        local task = tube.tasks[id]
        if state == READY and reason ~= REASONS.finished and task then
            shown.heads[place] = head_text(tube, id, task, reason_of(tube, task))
        end
    end
end

local function finish_items(tube, call, items, ids, wants_shown)
    load(tube, ids)
    local bytes = wants_shown and too_many_bytes(tube, ids)
    if bytes then
        return call:answer('\4' .. struct.pack('<d', bytes))
    end
    if not tube.options.times and has_wrong_touch(tube, items) then
        return call:answer('\5' .. string.char(tube.options.kind))
    end
    local outcomes, shown, done = {}, new_shown(), {}
    for place, item in ipairs(items) do
        outcomes[place] = finish_one(tube, item, wants_shown and shown)
        if outcomes[place] == DONE_ITEM then
            done[#done + 1] = item.id
        end
    end
    gates.regate(tube, done)
    show_gated(tube, shown)
    answer_shown(call, '\0' .. table.concat(outcomes), shown)
end

function verbs.finish(tube, header, call)
    local items, ids = read_items(header)
    finish_items(tube, call, items, ids, struct.unpack('B', header, 2) == 1)
end

-- Acks in the short form, without showing tasks.
function verbs.ack(tube, header, call)
    local acks, items = call.acks and call.acks[header] or read_acks(header), {}
    if tube.options.plain then
        return plain.ack(tube, call, acks)
    end
    for place, id in ipairs(acks.ids) do
        local who = acks.leases[place] or acks.who
        local result = acks.results and acks.results[place]
        items[place] = { id = id, holder = acks.holder, who = who, verb = ACK, span = 0, counted = 1, result = result }
    end
    finish_items(tube, call, items, acks.ids, false)
end

function verbs.delete(tube, header, call)
    local wants_shown = struct.unpack('B', header, 2) == 1
    local ids = read_ids(header, 3)
    load(tube, ids)
    local kept = done_tasks.find(tube, ids)
    local bytes = wants_shown and too_many_bytes(tube, ids, kept)
    if bytes then
        return call:answer('\4' .. struct.pack('<d', bytes))
    end
    local outcomes, shown, done = {}, new_shown(), {}
    for place, id in ipairs(ids) do
        local task = tube.tasks[id]
        outcomes[place] = (task or kept[id]) and DONE_ITEM or MISSING_ITEM
        if kept[id] then
            if wants_shown then
                done_tasks.show(tube, shown, id, kept[id], false)
            end
            done[#done + 1], kept[id] = id, nil
            count(tube, 'delete')
        elseif task then
            if wants_shown then
                show(tube, shown, id, REASONS.finished)
            end
            remove(tube, id, task)
            count(tube, 'delete')
        end
    end
    done_tasks.remove(tube, done)
    gates.regate(tube, ids)
    answer_shown(call, '\0' .. table.concat(outcomes), shown)
end

local function kick_one(tube, id, task)
    leave(tube, id, task)
    task.state, task.since = READY, tube.now
    enter(tube, id, task)
end

function verbs.kick(tube, header, call)
    local limit, kicked, all = struct.unpack('<d', header, 2), 0, {}
    while kicked < limit do
        flush(tube)
        local places = redis.call('ZRANGE', tube.base .. ':d', 0, math.min(limit - kicked, TAKE_STEP) - 1)
        if #places == 0 then
            break
        end
        local ids = {}
        for item, place in ipairs(places) do
            ids[item] = string.sub(place, 9)
        end
        load(tube, ids, true)
        for _, id in ipairs(ids) do
            kick_one(tube, id, tube.tasks[id])
            all[#all + 1] = id
        end
        kicked = kicked + #ids
    end
    gates.regate(tube, all)
    count(tube, 'kick', kicked)
    call:answer('\0' .. struct.pack('<d', kicked))
end

-- Makes buried tasks ready again. The header says whether their attempts count from zero again, and has the ids.
function verbs.kick_tasks(tube, header, call)
    local resets, ids, outcomes, kicked = struct.unpack('B', header, 2) == 1, read_ids(header, 3), {}, {}
    load(tube, ids)
    for place, id in ipairs(ids) do
        local task = tube.tasks[id]
        if not task then
            outcomes[place] = MISSING_ITEM
        elseif task.state ~= BURIED and task.state ~= DEAD_LETTER then
            outcomes[place] = STALE_ITEM
        else
            task.attempts = resets and 0 or task.attempts
            kick_one(tube, id, task)
            kicked[#kicked + 1], outcomes[place] = id, DONE_ITEM
        end
    end
    gates.regate(tube, kicked)
    count(tube, 'kick', #kicked)
    call:answer('\0' .. table.concat(outcomes))
end
