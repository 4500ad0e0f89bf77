-- Done tasks that tubes keep. Each is a row of a space of its own, so that the rows and orders of unfinished tasks stay as they are. It has the
-- row of the task as it was, and how it ended in the bytes that all stores have: `finished.rs` of the core describes them. A body that is stored
-- apart stays there.

-- A done task: its tube, id, end, priority and parts of its body, how it ended, and its row as an unfinished task.
local K_TUBE, K_ID, K_END, K_PRI, K_PARTS, K_FINISHED, K_TASK = 1, 2, 3, 4, 5, 6, 7
-- Bytes of how it ended without the name of the worker and the result. The last one is the length of the name.
local HEAD_BYTES = 17
-- How many rows are read together when some are removed.
local ROWS = 100
-- Removals may be late by this many microseconds, so that one tick removes several tasks.
local REMOVAL_DELAY = 200000
-- The memory is checked again after so many bytes.
local CHECK_BYTES = 1048576
-- How a task ended is written by `raw_insert.lua` if it has fewer bytes.
local RAW_BYTES_MAX = 65536

-- A tube is about to keep done tasks. Answers a refusal if they cannot be stored.
function done_tasks.begin()
    return formats.need(2, 'done', 'done tasks')
end

-- Whether a done task is not over age.
local function is_kept(c, o, row)
    return o.keep_done ~= nil and later(moment(row[K_END]), o.keep_done) > c.now
end

-- How many done tasks are too many. They are removed in groups: none until there are an eighth more than allowed.
local function excess(tube)
    local most = tube.o.keep_done and (tube.o.keep_done_max or {{KEEP_DONE_DEFAULT}})
    if not most then
        return tube.kept
    end
    return tube.kept > most + math.floor(most / 8) and tube.kept - most or 0
end

-- Reads the number of done tasks of a tube, once in a call.
local function read_count(tube)
    if not tube.kept then
        local row = S.kept:get(tube.number)
        tube.kept = row and row[3] or 0
    end
end

-- How many done tasks a tube has.
function done_tasks.count(tube)
    if S.done then
        read_count(tube)
    end
    return tube.kept or 0
end

-- Adds to the number of done tasks of a tube, which is written when the tube is.
local function count_more(c, tube, more)
    read_count(tube)
    tube.kept, tube.kept_at = tube.kept + more, c.now
end

-- Writes the number of done tasks, and when some are to be removed: if there are too many, since this change.
function done_tasks.flush(tube)
    local of, at = tube.number, tube.kept_at
    tube.kept_at = nil
    if tube.kept == 0 then
        S.kept:delete(of)
        return
    end
    local before, due = S.kept:get(of), nil
    if excess(tube) > 0 then
        due = before and before[2] <= at and moment(before[2]) or at
    else
        due = later(moment(S.done.index[1]:select({ of }, { limit = 1 })[1][K_END]), tube.o.keep_done)
    end
    S.kept:replace({ of, stamp(due), tube.kept })
end

-- After the options of a tube changed.
function done_tasks.update(c, tube)
    if S.done and S.kept:get(tube.number) then
        count_more(c, tube, 0)
    end
end

-- Counts the done tasks of all tubes after this instance started or became writable.
function done_tasks.count_all()
    if not S.done then
        return
    end
    for _, row in ipairs(S.kept:select()) do
        S.kept:delete(row[1])
    end
    for _, row in S.tube:pairs() do
        -- An excess is due at once, whatever the clock of the caller.
        done_tasks.flush({ number = row[1], o = read_options(row[3]), kept = S.done:count({ row[1] }), kept_at = 0 })
    end
end

-- How a delivery ended, without the result. Deliveries of one take have the same times and worker.
local function head_of(c, delivery)
    local start, worker = delivery[D_START], given(delivery[D_WORKER]) or ''
    local last = c.finished
    if not last or last.start ~= start or last.worker ~= worker then
        local run = math.min(math.max(c.now - tonumber(start), 0), FOREVER)
        local head = { big_endian(c.now, 8), big_endian(run, 8), string.char(#worker), worker }
        last = { start = start, worker = worker, head = table.concat(head) }
        c.finished = last
    end
    return last.head
end

-- Whether there is too little memory: deliveries must end even then, and the memory is for them.
local function is_too_full(c, bytes)
    c.kept_bytes = (c.kept_bytes or 0) + bytes
    if c.full == nil or c.kept_bytes > CHECK_BYTES then
        c.full, c.kept_bytes = is_full(), 0
    end
    return c.full
end

-- Adds a row. Answers false if there is no memory for one of its size.
local function insert(c, of, id, pri, parts, finished, task, size)
    if c.keeps_raw == nil then
        c.keeps_raw = can_insert_raw(S.done)
    end
    local done, why
    if c.keeps_raw and #finished < RAW_BYTES_MAX and type(pri) == 'number' and type(id) == 'number' then
        done, why = pcall(done_tasks.insert_raw, of, id, c.now, pri, parts, finished, task, size)
    else
        done, why = pcall(S.done.insert, S.done, { of, id, c.now, pri, parts, finished, task })
    end
    if not done then
        if type(why) ~= 'cdata' or why.type ~= 'OutOfMemory' then
            error(why, 0)
        end
        -- For the rest of the call.
        c.full, c.kept_bytes = true, -math.huge
    end
    return done
end

-- Keeps a task whose delivery was acked at this moment. The caller has removed it, but not its body.
function done_tasks.add(c, tube, task, delivery, result)
    local finished, parts, size = head_of(c, delivery), task[PARTS], task:bsize()
    if result ~= nil then
        finished = finished .. text(result)
    end
    if not is_too_full(c, #finished + size)
        and insert(c, tube.number, delivery[D_ID], task[PRI], parts, finished, task, size) then
        count_more(c, tube, 1)
    elseif parts > 0 then
        forget_body(tube, task)
    end
end

-- Keeps a task from another store, which ended at this moment.
function done_tasks.import(c, tube, task, finished, at)
    local refusal = done_tasks.begin()
    if refusal then
        error(refusal[3], 0)
    end
    S.done:insert({ tube.number, task[ID], at, task[PRI], task[PARTS], finished, task })
    count_more(c, tube, 1)
end

-- Done tasks of a tube from this id on, at most so many, each as an unfinished task with how it ended.
function done_tasks.export(of, from, count)
    local tasks = {}
    for place, row in ipairs(S.done and S.done:select({ of, from }, { iterator = 'GE', limit = count }) or {}) do
        if row[K_TUBE] ~= of then
            break
        end
        local task = row[K_TASK]
        task[STATE], task[OWN] = DONE, NULL
        tasks[place] = { task, row[K_FINISHED] }
    end
    return tasks
end

-- A done task that is not over age.
function done_tasks.get(c, tube, id)
    local row = tube.o.keep_done and S.done:get({ tube.number, id })
    return row and is_kept(c, tube.o, row) and row or nil
end

-- How many bytes the body and the result of a done task have.
function done_tasks.bytes(tube, id)
    local row = tube.o.keep_done and S.done:get({ tube.number, id })
    if not row then
        return 0
    end
    local finished = row[K_FINISHED]
    return row[K_TASK][BYTES] + #finished - HEAD_BYTES - string.byte(finished, HEAD_BYTES)
end

-- A done task as answers show it; a peek shows all of it. In an answer, failures, end, key and number of attempts are in the places of the
-- tube, the size of the body, its parts and the flag.
function done_tasks.view(c, tube, row, is_peek)
    local task = row[K_TASK]
    local failures = is_peek and given(task[FAILURES])
    task[BODY], task[STATE], task[REASON] = body_of(tube, task), DONE, { REASONS.finished }
    task[DUE], task[OWN], task[TUBE], task[BYTES] = NULL, NULL, failures or NULL, row[K_FINISHED]
    task[PARTS], task[FLAG] = is_peek and given(task[KEY]) or NULL, given(task[OWN_ATTEMPTS]) or NULL
    cut_optional(task)
    c.bytes = c.bytes + (failures and #failures or 0)
    return task
end

function done_tasks.remove(c, tube, row)
    local id, parts = row[K_ID], row[K_PARTS]
    S.done:delete({ tube.number, id })
    if parts > 0 then
        forget_body(tube, { [ID] = id, [PARTS] = parts })
    end
    count_more(c, tube, -1)
end

-- Removes done tasks that are over age or too many, oldest first, at most so many. Answers how many.
local function trim(c, tube, limit)
    read_count(tube)
    local over, removed = excess(tube), 0
    while removed < limit do
        local wanted = math.min(limit - removed, ROWS)
        local rows = S.done.index[1]:select({ tube.number }, { limit = wanted })
        for _, row in ipairs(rows) do
            if removed >= over and is_kept(c, tube.o, row) then
                return removed
            end
            done_tasks.remove(c, tube, row)
            removed = removed + 1
        end
        if #rows < wanted then
            break
        end
    end
    return removed
end

-- Removes done tasks of all tubes, at most so many. Answers how many.
function done_tasks.tick(c, limit)
    local removed = 0
    while S.done and removed < limit do
        local first = S.kept.index[1]:min()
        if not first or first[2] > c.now then
            break
        end
        local tube = open_number(c, first[1])
        local count = trim(c, tube, limit - removed)
        flush(tube)
        if count == 0 then
            break
        end
        removed = removed + count
    end
    return removed
end

-- When a tick has to remove some.
function done_tasks.wakeup()
    local first = S.done and S.kept.index[1]:min()
    return first and later(moment(first[2]), REMOVAL_DELAY) or NEVER
end

-- A page by id, of all or those with this key, with a pause after each STEP rows.
function done_tasks.page(c, tube, first, limit, pause, key)
    local of, page = tube.number, {}
    while tube.o.keep_done do
        local rows = S.done:select({ of, first }, { iterator = 'GE', limit = STEP })
        for _, row in ipairs(rows) do
            if row[K_TUBE] ~= of or #page == limit then
                return page
            elseif is_kept(c, tube.o, row) and (key == nil or row[K_TASK][KEY] == key) then
                page[#page + 1] = { row[K_ID], row[K_PRI] }
            end
        end
        if #rows < STEP then
            return page
        end
        first = rows[STEP][K_ID] + 1
        pause()
    end
    return page
end
