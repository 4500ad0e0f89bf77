-- Exports and imports all data, when a store is copied. A program that only exports is not one of the servers.

-- Whether the spaces exist.
local function has_data()
    if not find_spaces() then
        return false
    end
    if not is_counted(foreign()) then
        atomically(function() end)
    end
    return true
end

-- The version of the stored format and the durability, as `begin` answers.
function api.probe()
    local meta = box.space[full_name('meta')]
    return { meta and meta:get('format')[2] or FORMAT, box.cfg.wal_mode, _TARANTOOL, box.info.ro }
end

-- All tubes, as a batch answers.
function api.export_tubes()
    local shown = {}
    if has_data() then
        shown = verbs[3](new_context('', 0), { 3 })[2]
    end
    return { { { REPLY.tubes, shown } }, 0, NULL, {}, {}, false }
end

-- The next id and the bucket of each tube, and a lease number that was not used yet.
function api.export_numbers()
    local ids = {}
    if not has_data() then
        return { ids, 0 }
    end
    for _, row in S.tube:pairs() do
        ids[#ids + 1] = { row[1], row[4], pace.export(row[1]) }
    end
    return { ids, read_meta('lease') or 0 }
end

-- Tasks of a tube by id, each with the start of its delivery or how it ended, and the limit of attempts.
function api.export_tasks(of, from, count, bytes_max)
    local tube, tasks, size, bytes = has_data() and S.tube:get(of), {}, 0, 0
    if not tube then
        return { tasks, NULL }
    end
    local function add(task, finished)
        local delivery = not finished and S.taken:get({ of, task[ID] })
        bytes, size = bytes + task[BYTES], size + 1
        if task[PARTS] > 0 then
            local row = type(task) == 'table' and task or task:totable()
            row[BODY] = body_of({ number = of }, task)
            task = row
        end
        tasks[2 * size - 1], tasks[2 * size] = task, delivery and delivery[D_START] or finished or NULL
    end
    local done, at = done_tasks.export(of, from, count), 1
    -- Adds the done tasks before this id; answers whether there is room for more.
    local function add_done(id)
        while size < count and bytes < bytes_max and done[at] and done[at][1][ID] < id do
            add(done[at][1], done[at][2])
            at = at + 1
        end
        return size < count and bytes < bytes_max
    end
    for _, task in S.task:pairs({ of, from }, { iterator = 'GE' }) do
        if task[TUBE] ~= of or not add_done(task[ID]) then
            break
        end
        add(task)
    end
    add_done(STORED_NEVER)
    return { tasks, read_options(tube[3]).attempts_max or NULL }
end

-- Ended tasks of a tube whose keys are held, by id.
function api.export_ended_keys(of, from, count)
    return has_data() and keys.export(of, from, count) or {}
end

-- All semaphores with their entries and events.
function api.export_semaphores()
    local found = {}
    for place, row in ipairs(has_data() and S.semaphore.index[1]:select() or {}) do
        found[place] = { row, S.place:select({ row[1] }), S.event.index[3]:select({ row[1] }) }
    end
    return found
end

-- Schedules by name after this one, as a batch answers.
function api.export_schedules(name, limit)
    return { { has_data() and schedules.export(given(name), limit) or { REPLY.nothing } }, 0, NULL, {}, {}, false }
end

-- Runs work in one transaction, and waits until so many replicas have it.
local function import(now, replicas, work)
    atomically(function()
        local c = new_context('', moment(now))
        work(c)
        flush_all(c)
    end)
    if replicas > 0 and not wait_for_replicas(replicas, REPLICAS_SECONDS) then
        error('the import is done, but too few replicas have it', 0)
    end
    return {}
end

function api.import_tasks(now, replicas, tube, tasks)
    return import(now, replicas, function(c) imports.tasks(c, tube, tasks) end)
end

function api.import_ended_keys(now, replicas, tube, ended)
    return import(now, replicas, function(c) imports.ended_keys(c, tube, ended) end)
end

-- The last step: tubes get their names, semaphores and schedules are imported, and lease numbers continue from this one.
function api.import_end(now, replicas, next_lease, tubes, semaphores, entries, events, sets)
    return import(now, replicas, function(c)
        local named = {}
        for place, row in ipairs(tubes) do
            named[place] = imports.tube(c, row)
        end
        imports.semaphores(c, semaphores, named, entries, events)
        imports.gates(c, named)
        schedules.import(sets)
        write_meta('lease', math.max(read_meta('lease') or 0, tonumber(next_lease)))
    end)
end

-- The latest format that this library knows.
api.format = FORMAT
find_spaces()
return api
