-- Connects tubes with their semaphore: tasks of such a tube are ready only while they hold a grant. One call then works on keys of several
-- hash tags, so this needs a single Redis.
--
-- A task is in the semaphore exactly while it is ready, taken, or would be ready with a grant (gated). So code that moves tasks ends with
-- `regate`, and code that changes entries ends with `follow`.

local MARK = '\128'

-- The name of a tube's task in its semaphore.
local function gated_task(tube, id)
    return MARK .. struct.pack('>I4', tube.options.number) .. id
end

gates.task = gated_task

-- The tube of this tag.
function gates.tube(call, tag)
    return call.tubes[tag] or gates.open_tube(call, '{' .. call.prefix .. ':' .. tag .. '}', '')
end

-- The same, if the task still belongs to it.
local function tube_of(call, tag, task)
    local tube = gates.tube(call, tag)
    if tube and not tube.dropped and gated_task(tube, string.sub(task, 6)) == task then
        return tube
    end
end

-- Opens the tube of a task, if it has one. Answers whether that restarted the tube, and so changed this semaphore, because all servers
-- were gone meanwhile: then the caller decides again.
function sem.refresh(s, entry)
    if #entry.task == 8 or s.call.tubes[entry.tag] then
        return false
    end
    local tube = gates.tube(s.call, entry.tag)
    return tube and tube.restarted
end

function sem.is_idle(s, entry)
    local task = entry.task
    if #task == 8 then
        return false
    end
    local tube, id = tube_of(s.call, entry.tag, task), string.sub(task, 6)
    if not tube then
        return true
    end
    load(tube, { id })
    return not tube.tasks[id] or tube.tasks[id].state ~= TAKEN
end

local function set_gated(tube, id, task, holds)
    if task.state == (holds and GATED or READY) then
        leave(tube, id, task)
        task.state = holds and READY or GATED
        enter(tube, id, task)
    end
end

-- After a semaphore changed: tasks with a new grant are ready, tasks that lost theirs are gated.
function gates.follow(s)
    local moved = s.moved
    s.moved = {}
    for _, task in ipairs(moved) do
        local entry, id = sem.find(s, task), string.sub(task, 6)
        local tube = entry and tube_of(s.call, entry.tag, task)
        if tube then
            load(tube, { id })
            if tube.tasks[id] then
                set_gated(tube, id, tube.tasks[id], entry.status >= HOLDING)
            end
        end
    end
end

-- The priority of a task in the semaphore: what its put says, or the lower the larger the number of its priority in the tube.
local function priority_of(record)
    if record.own then
        return (struct.unpack('<d', record.own))
    end
    return 0 - struct.unpack('>I8', record.pri)
end

-- Brings the entry of one task in line with its state.
local function update_entry(s, tube, id)
    local task, record = gated_task(tube, id), tube.tasks[id]
    local state = record and record.state
    if state == READY or state == GATED then
        rules.follow_tube(s, task, 'waits', priority_of(record), tube.tag)
    else
        rules.follow_tube(s, task, state == TAKEN and 'taken' or nil)
    end
    -- The tube may have another state although nothing changed here.
    s.moved[#s.moved + 1] = task
end

-- After tasks of a tube moved: brings their semaphore in line with them. Does nothing for a tube without one.
function gates.regate(tube, ids)
    if tube.options.semaphore == '' or #ids == 0 then
        return
    end
    load(tube, ids)
    local s = sem.open(tube.call, tube.options.semaphore)
    if not s then
        -- Without its semaphore no task of the tube is ready.
        for _, id in ipairs(ids) do
            if tube.tasks[id] then
                set_gated(tube, id, tube.tasks[id], false)
            end
        end
        return
    end
    for _, id in ipairs(ids) do
        update_entry(s, tube, id)
    end
    rules.admit_waiters(s)
    gates.follow(s)
end

-- All tasks of a tube with a semaphore, by id.
function gates.all_ids(tube)
    if tube.options.semaphore == '' then
        return {}
    end
    flush(tube)
    local ids = redis.call('HKEYS', tube.base .. ':t')
    table.sort(ids)
    return ids
end

