-- Imports from another store. Tasks are imported by id into a tube with a temporary name; in the end it gets its name, and semaphores are
-- imported with their entries. Everything is checked before anything is written.

local GIVES_OWN_PRIORITY, GIVES_SUBQUEUE_NAME, GIVES_FAILURES, GIVES_FINISHED, GIVES_EXTENSION = 1, 2, 4, 8, 16

local function refused(...)
    return '\1' .. string.format(...)
end

-- One task at this position of a header, and the position of the next one.
local function read_copy(header, place)
    local new, given = {}, nil
    new.id, new.state, new.pri, new.created, new.expires, new.ttr, new.attempts, new.moment, new.previous, given, place =
        struct.unpack('<c8Bc8dddI4ddB', header, place)
    if has(given, GIVES_OWN_PRIORITY) then
        new.own, place = struct.unpack('c8', header, place)
    end
    if has(given, GIVES_SUBQUEUE_NAME) then
        new.subqueue, place = struct.unpack('<I2c0', header, place)
    end
    if has(given, GIVES_FAILURES) then
        new.failures, place = struct.unpack('<I2c0', header, place)
    end
    if has(given, GIVES_FINISHED) then
        new.finished, place = struct.unpack('<I4c0', header, place)
    end
    if has(given, GIVES_EXTENSION) then
        place = keyring.read_extension(new, header, place)
    end
    return new, place
end

local function import_task(tube, new, body)
    if new.finished and tube.options.keep_done < 0 then
        -- It cannot be seen, and the next tick would remove it.
        return
    end
    local task = make_task(tube, new, body)
    task.state, task.attempts, task.pri, task.created, task.expires = new.state, new.attempts, new.pri, new.created, new.expires
    task.ttr, task.previous, task.moment = new.ttr, new.previous, new.state == DELAYED and new.moment or 0
    task.since = new.state == READY and new.moment > 0 and new.moment or nil
    if new.failures then
        task.failed = true
        note_failures(tube, new.id, new.failures)
    end
    if new.finished then
        done_tasks.import(tube, new.id, task, new.finished)
    else
        enter(tube, new.id, task)
        if task.key then
            keyring.hold(tube, task.key, new.id)
        end
    end
    if not task.body then
        tube.b[new.id] = body
    end
end

local imports = {}

-- Reads tasks from a header, and the holders of their keys.
local function read_copies(tube, header)
    local copies, keys, size, place = {}, {}, struct.unpack('<I4', header)
    for item = 1, size do
        copies[item], place = read_copy(header, place)
        keys[#keys + 1] = copies[item].key
        copies.extended = copies.extended or copies[item].extension
    end
    keyring.load(tube, keys)
    return copies
end

-- Whether another task holds the key of this one, which is not done.
local function has_held_key(tube, new)
    return new.key and not new.finished and keyring.holder(tube, new.key)
end

-- Tasks with their ids, which must be beyond those that the tube has. The bodies follow the header.
function imports.T(call, base)
    local tube, header = open_tube(call, base, call.args[5]), call.args[7]
    if not tube then
        return refused("tube '%s' does not exist", call.args[5])
    end
    plain.leave(tube)
    local copies, next_id = read_copies(tube, header), tube.numbers[NEXT_ID]
    for item, new in ipairs(copies) do
        local id, body = struct.unpack('>I8', new.id), call.args[7 + item]
        if id < next_id or id > TASK_ID_MAX or (new.subqueue ~= nil) ~= tube.options.subqueues then
            return refused("task %.0f cannot be imported into tube '%s'", id, call.args[5])
        elseif has_held_key(tube, new) then
            return refused('cannot import task %.0f: its key is held', id)
        end
        import_task(tube, new, body)
        next_id = id + 1
    end
    tube.numbers[NEXT_ID] = next_id
    if copies.extended then
        keyring.mark(tube)
    end
    close_tube(call, tube)
    return '\0'
end

-- Keys of ended tasks, each with the id of its task and until when it is held. Those that are there already are skipped.
function imports.J(call, base)
    local tube, text, place = open_tube(call, base, call.args[5]), call.args[7], 1
    if not tube then
        return refused("tube '%s' does not exist", call.args[5])
    end
    plain.leave(tube)
    while place <= #text do
        local id, moment, key
        id, moment, key, place = struct.unpack('<c8dI2c0', text, place)
        keyring.load(tube, { key })
        load(tube, { id })
        local holder, ending = keyring.holder(tube, key)
        if tube.tasks[id] or holder and (holder ~= id or not ending) then
            return refused("cannot import key '%s' into tube '%s': it is held", key, call.args[5])
        elseif not holder then
            keyring.hold(tube, key, id)
            keyring.hold_ended(tube, key, id, moment)
        end
    end
    keyring.mark(tube)
    close_tube(call, tube)
    return '\0'
end

-- The final state of a tube: its temporary and its final name, flags, capacity, queue number, next id, semaphore, counters, retry policy, rate
-- limit, and the bucket of that.
local function read_tube(word)
    local new, place = { numbers = {} }, nil
    new.came, new.name, new.flags, new.capacity_bytes, new.queue, new.next_id, new.semaphore, place =
        struct.unpack('<I2c0I2c0Bc8I4dI2c0', word)
    for number = DONE, 15 do
        new.numbers[number], place = struct.unpack('<d', word, place)
    end
    new.retry, new.rate, place = pace.read(word, place)
    if place <= #word then
        new.level, new.at = struct.unpack('<dd', word, place)
    end
    return new
end

-- Gives a tube the options and numbers of its original, and this name.
local function end_tube(call, tube, new, name)
    plain.leave(tube)
    local o, flags = tube.options, new.flags
    flags = flags + (o.ttl_kills_taken and TTL_KILLS_TAKEN or 0) + (o.keyed and keyring.USED or 0) + (o.ended_keys and keyring.ENDED or 0)
    change_options(tube, { flags = flags, queue = new.queue, name = name,
        capacity_bytes = new.capacity_bytes, semaphore = new.semaphore, retry = new.retry, rate = new.rate })
    if new.level then
        pace.set_bucket(tube, new.level, new.at)
    end
    tube.numbers[NEXT_ID] = math.max(tube.numbers[NEXT_ID], new.next_id)
    for number = DONE, 15 do
        tube.numbers[number] = new.numbers[number]
    end
    tube.notify = true
    join(call, tube)
end

-- The last step of one tube on a cluster: all but its name and its queue number.
function imports.O(call, base)
    local tube, new = open_tube(call, base, call.args[5]), read_tube(call.args[7])
    if not tube then
        return refused("tube '%s' does not exist", call.args[5])
    end
    new.queue = tube.options.queue
    end_tube(call, tube, new, new.came)
    close_tube(call, tube)
    return '\0'
end

-- The name of a task in a semaphore: tasks of tubes have the number of their tube before them.
local function task_here(tube, task)
    return tube and gates.task(tube, task) or task
end

-- One semaphore without entries.
local function import_semaphore(call, word, number)
    local key, raw, grants, recheck = struct.unpack('<I2c0I2c0dd', word)
    local s = sem.create(call, key, number, raw)
    s.grants, s.recheck = grants, recheck
    return s
end

-- Entries in the order of arrival; each with its semaphore and its tube (or none), by their positions in the lists.
local function import_places(semaphores, tubes, text)
    local place = 1
    while place <= #text do
        local p, of, in_tube, task = { deadline = NEVER }, nil, nil, nil
        of, in_tube, task, p.status, p.declined, p.priority, p.enqueued, p.until_when, p.grant, p.granted, p.lease_until, p.ack_by,
            p.revoke_at, place = struct.unpack('<I4I4c8BBdddddddd', text, place)
        local s, tube = semaphores[of], tubes[in_tube]
        task = task_here(tube, task)
        p.task, p.tag, p.seq = task, tube and tube.tag or '', s.next_seq
        s.next_seq = s.next_seq + 1
        s.entries[task] = p
        sem.write(s, p)
    end
end

-- Events in their order. They get new numbers, because event ids contain the semaphore.
local function import_events(semaphores, tubes, text)
    local place = 1
    while place <= #text do
        local of, in_tube, task, kind, attempts, next_at, grant
        of, in_tube, task, kind, attempts, next_at, grant, place = struct.unpack('<I4I4c8BI4dd', text, place)
        local s = semaphores[of]
        local now = s.now
        s.now = next_at
        outbox.add(s, task_here(tubes[in_tube], task), grant, kind, attempts)
        s.now = now
    end
end

-- A semaphore on a cluster, which no tube uses: its number, itself, its entries, its events.
function imports.S(call)
    local key = struct.unpack('<I2c0', call.args[8])
    if sem.open(call, key) then
        return refused("semaphore '%s' exists already", key)
    end
    local semaphores = { import_semaphore(call, call.args[8], tonumber(call.args[7])) }
    import_places(semaphores, {}, call.args[9])
    import_events(semaphores, {}, call.args[10])
    end_call(call, nil)
    return '\0'
end

-- Lease numbers continue from this one.
function imports.L(_, base, next_lease)
    local key = base .. ':lease'
    local before = tonumber(redis.call('GET', key) or 0)
    redis.call('SET', key, string.format('%.0f', math.max(before, tonumber(next_lease))))
    return '\0'
end

-- The tube of this name, if there is one.
local function named(call, base, name)
    if redis.call('HEXISTS', base .. ':tubes', name) == 0 then
        return nil
    end
    local tag = redis.call('HGET', base .. ':homes', name) or name
    return open_tube(call, '{' .. call.prefix .. ':' .. tag .. '}', name), tag
end

-- Why a tube cannot get its name or its queue number.
local function refuse_tube(call, base, new)
    if named(call, base, new.name) then
        return refused("tube '%s' exists already", new.name)
    end
    local owner = new.queue > 0 and redis.call('HGET', base .. ':queues', new.queue)
    local tag = owner and string.match(owner, '^(.*) %d+$')
    local other = tag and open_tube(call, '{' .. call.prefix .. ':' .. tag .. '}', '')
    if other and other.options.queue == new.queue then
        return refused("tube '%s' has queue number %.0f, which another tube has already", new.name, new.queue)
    end
end

local function name_tube_here(base, tube, tag, new)
    listing.add(base, new.name, tube.options.number, tag)
    names.unlist(base, nil, new.came, string.format('%.0f', tube.options.number))
    if new.queue > 0 then
        redis.call('HSET', base .. ':queues', new.queue, tag .. ' 0')
    end
end

-- The tasks of a tube whose entries in its semaphore do not fit their state.
local function loose_of(tube)
    local ids, loose = gates.all_ids(tube), {}
    local s = sem.open(tube.call, tube.options.semaphore)
    load(tube, ids)
    for _, id in ipairs(ids) do
        local entry, state = sem.find(s, gates.task(tube, id)), tube.tasks[id].state
        local waits = state == READY or state == GATED
        if waits ~= (entry and true or false) or entry and entry.status == ASKED then
            loose[#loose + 1] = id
        end
    end
    return loose
end

-- Brings tubes and their semaphores in line with each other: only tasks with a grant are ready.
local function close_gates(call, tubes)
    local loose = {}
    for place, tube in ipairs(tubes) do
        if tube.options.semaphore ~= '' then
            load(tube, gates.all_ids(tube))
        end
    end
    for _, s in pairs(call.semaphores) do
        if s then
            gates.follow(s)
        end
    end
    for place, tube in ipairs(tubes) do
        loose[place] = tube.options.semaphore ~= '' and loose_of(tube) or {}
    end
    for place, tube in ipairs(tubes) do
        gates.regate(tube, loose[place])
    end
end

-- Why the import cannot be finished, or the imported tubes, their tags, and their final states.
local function check_end(call, base, words, tubes_count, semaphores_count)
    local tubes, tags, new = {}, {}, {}
    for place = 1, tubes_count do
        new[place] = read_tube(words[place])
        tubes[place], tags[place] = named(call, base, new[place].came)
        local refusal = not tubes[place] and refused("tube '%s' does not exist", new[place].came) or refuse_tube(call, base, new[place])
        if refusal then
            return refusal
        end
    end
    for place = 1, semaphores_count do
        local key = struct.unpack('<I2c0', words[tubes_count + place])
        if sem.open(call, key) then
            return refused("semaphore '%s' exists already", key)
        end
    end
    return nil, tubes, tags, new
end

-- Why the schedules of an import, from this place of its arguments on, cannot be added.
local function refuse_schedules(base, args, first)
    local refusal, name = schedules.refuse(base, args, first)
    if refusal then
        return name and refused("schedule '%s' exists already", name) or refused('there are too many schedules')
    end
end

-- The last step on a single Redis: the next lease number, the numbers of tubes, semaphores and schedules, the first two, entries and events,
-- and the schedules.
function imports.A(call, base)
    call.prefix = string.sub(base, 2, -2)
    local tubes_count, semaphores_count, words = tonumber(call.args[8]), tonumber(call.args[9]), {}
    local first_schedule = #call.args - 2 * tonumber(call.args[10]) + 1
    for place = 11, first_schedule - 1 do
        words[place - 10] = call.args[place]
    end
    local refusal, tubes, tags, new = check_end(call, base, words, tubes_count, semaphores_count)
    refusal = refusal or refuse_schedules(base, call.args, first_schedule)
    if refusal then
        return refusal
    end
    schedules.add(base, call.args, first_schedule)
    imports.L(call, base, call.args[7])
    local semaphores = {}
    for place = 1, semaphores_count do
        local word = words[tubes_count + place]
        local key = struct.unpack('<I2c0', word)
        semaphores[place] = import_semaphore(call, word, names.semaphore(base, nil, key)[2])
    end
    for place, tube in ipairs(tubes) do
        name_tube_here(base, tube, tags[place], new[place])
        end_tube(call, tube, new[place], new[place].name)
    end
    import_places(semaphores, tubes, words[#words - 1])
    import_events(semaphores, tubes, words[#words])
    close_gates(call, tubes)
    for _, tube in ipairs(tubes) do
        close_tube(call, tube)
    end
    end_call(call, nil)
    return '\0'
end

-- After the arguments of every call: what to import.
local function import(keys, args)
    local call = new_call(keys[1], args, args[5] == '1')
    return { imports[args[6]](call, keys[1], args[7]) }
end

redis.register_function(NAME .. '_import', import)
