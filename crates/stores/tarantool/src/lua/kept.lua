-- Done tasks that tubes keep. Each is a row of a space of its own, so that the rows and orders of unfinished tasks stay as they are: the row of
-- the task, with its end as DUE and with FINISHED, the bytes that all stores have: `finished.rs` of the core describes them. A body that is
-- stored apart stays there.

local FINISHED = 20
-- Bytes of FINISHED without the name of the worker and the result. The last one is the length of the name.
local HEAD_BYTES = 17
-- How many rows are read together when some are removed.
local ROWS = 100
-- Removals may be late by this many microseconds, so that one tick removes several tasks.
local REMOVAL_DELAY = 200000
-- The memory is checked again after so many bytes.
local CHECK_BYTES = 1048576

-- Creates the space of done tasks in a database of an earlier version. Without the right to create it the rest works.
function kept.prepare()
    if box.space[full_name('done')] ~= nil then
        return
    end
    local made, why = pcall(make_spaces)
    if not made and (type(why) ~= 'cdata' or why.code ~= box.error.ACCESS_DENIED) then
        error(why, 0)
    end
end

-- Refuses the calls of libraries of an earlier format, once it is raised: they would lose done tasks. Their servers connect again, and learn why
-- they are refused.
local function refuse_earlier()
    for name, all in pairs(_G) do
        local format = type(name) == 'string' and string.match(name, '^taskyard_(%d+)_%x+$')
        local part = format and tonumber(format) < FORMAT and type(all) == 'table' and type(all.parts) == 'table' and all.parts[PREFIX]
        if part and not getmetatable(part) then
            all.parts[PREFIX] = setmetatable({}, { __index = function(_, verb)
                if read_meta('format') > tonumber(format) then
                    box.error(box.error.NO_SUCH_PROC, name .. '.' .. verb)
                end
                return part[verb]
            end })
        end
    end
end

-- The first tube is about to keep done tasks: raises the stored format. Answers a refusal if they cannot be stored.
function kept.begin()
    if not S.done then
        find_spaces()
    end
    if not S.done then
        return refuse('invalid', "done tasks cannot be kept: space '" .. full_name('done')
            .. "' does not exist, and this user may not create it; run `taskyard migrate` as its owner")
    end
    if read_meta('format') < FORMAT then
        write_meta('format', FORMAT)
        refuse_earlier()
    end
end

-- Whether a done task is not over age.
local function is_kept(c, o, row)
    return o.keep_done ~= nil and later(moment(row[DUE]), o.keep_done) > c.now
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

-- Adds to the number of done tasks of a tube, which is written when the tube is.
local function count_more(c, tube, more)
    read_count(tube)
    tube.kept, tube.kept_at = tube.kept + more, c.now
end

-- Writes the number of done tasks, and when some are to be removed: if there are too many, since this change.
function kept.flush(tube)
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
        due = later(moment(S.done.index[1]:select({ of }, { limit = 1 })[1][DUE]), tube.o.keep_done)
    end
    S.kept:replace({ of, stamp(due), tube.kept })
end

-- After the options of a tube changed.
function kept.update(c, tube)
    if S.done and S.kept:get(tube.number) then
        count_more(c, tube, 0)
    end
end

-- Counts the done tasks of all tubes after this instance started or became writable.
function kept.count_all()
    if not S.done then
        -- Another instance may have created the space.
        find_spaces()
    end
    if not S.done then
        return
    end
    for _, row in ipairs(S.kept:select()) do
        S.kept:delete(row[1])
    end
    for _, row in S.tube:pairs() do
        -- An excess is due at once, whatever the clock of the caller.
        kept.flush({ number = row[1], o = read_options(row[3]), kept = S.done:count({ row[1] }), kept_at = 0 })
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

-- What changes in the row of a task that is done. Reused, because an update keeps nothing of it.
local CHANGES = { { '=', STATE, DONE }, { '=', DUE, 0 }, { '=', OWN, NULL }, { '=', FAILURES, NULL }, { '=', FINISHED, '' } }

-- Keeps a task whose delivery was acked at this moment. The caller has removed it, but not its body.
function kept.add(c, tube, task, delivery, result)
    local finished = head_of(c, delivery)
    if result ~= nil then
        finished = finished .. text(result)
    end
    if is_too_full(c, #finished + task:bsize()) then
        if task[PARTS] > 0 then
            forget_body(tube, task)
        end
        return
    end
    local failures = task[FAILURES]
    CHANGES[2][3], CHANGES[4][3], CHANGES[5][3] = c.now, failures == nil and NULL or failures, finished
    S.done:insert(task:update(CHANGES))
    count_more(c, tube, 1)
end

-- Keeps a task from another store. The row has its end as DUE.
function kept.import(c, tube, row, finished)
    local refusal = kept.begin()
    if refusal then
        error(refusal[3], 0)
    end
    row[FAILURES], row[FINISHED] = row[FAILURES] or NULL, finished
    S.done:insert(row)
    count_more(c, tube, 1)
end

-- A done task that is not over age.
function kept.get(c, tube, id)
    local row = tube.o.keep_done and S.done:get({ tube.number, id })
    return row and is_kept(c, tube.o, row) and row or nil
end

-- The size of FINISHED, of any row of a task.
function kept.finished_bytes(task)
    local finished = task[FINISHED]
    return finished and #finished or 0
end

-- How many bytes the body and the result of a done task have.
function kept.bytes(tube, id)
    local row = tube.o.keep_done and S.done:get({ tube.number, id })
    if not row then
        return 0
    end
    return row[BYTES] + #row[FINISHED] - HEAD_BYTES - string.byte(row[FINISHED], HEAD_BYTES)
end

-- A done task as answers show it. In an answer, failures and end are in the places of the tube and the size of the body.
function kept.view(c, tube, row, failures)
    local seen = row:totable(1, BYTES)
    seen[BODY], seen[REASON], seen[DUE] = body_of(tube, row), { REASONS.finished }, NULL
    seen[TUBE], seen[BYTES] = failures or NULL, row[FINISHED]
    c.bytes = c.bytes + (failures ~= nil and #failures or 0)
    return seen
end

function kept.remove(c, tube, row)
    S.done:delete({ tube.number, row[ID] })
    if row[PARTS] > 0 then
        forget_body(tube, row)
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
            kept.remove(c, tube, row)
            removed = removed + 1
        end
        if #rows < wanted then
            break
        end
    end
    return removed
end

-- Removes done tasks of all tubes, at most so many. Answers how many.
function kept.tick(c, limit)
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
function kept.wakeup()
    local first = S.done and S.kept.index[1]:min()
    return first and later(moment(first[2]), REMOVAL_DELAY) or NEVER
end

-- A page by id, with a pause after each STEP rows.
function kept.page(c, tube, first, limit, pause)
    local of, page = tube.number, {}
    while tube.o.keep_done do
        local rows = S.done:select({ of, first }, { iterator = 'GE', limit = STEP })
        for _, row in ipairs(rows) do
            if row[TUBE] ~= of or #page == limit then
                return page
            elseif is_kept(c, tube.o, row) then
                page[#page + 1] = { row[ID], row[PRI] }
            end
        end
        if #rows < STEP then
            return page
        end
        first = rows[STEP][ID] + 1
        pause()
    end
    return page
end
