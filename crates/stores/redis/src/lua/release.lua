-- Gives back tasks whose delivery ends without ack, and reads which deliveries end.

local BY_LEASE, BY_SESSION, BY_ANY_CALLER = 0, 1, 2
local DONE_ITEM, STALE_ITEM, MISSING_ITEM = '\0', '\1', '\2'

-- Id, holder, who that is, how it ends, a length of time, whether it counts. A failed delivery without such a length is buried. The errors of
-- failed ones and the results of acks with one follow all items; after an error is the random number, if the retry policy decides.
local ITEM = '<c8Bc16BdB'
local ITEM_BYTES = 35
local FAIL, ACK_WITH_RESULT, FAIL_BY_POLICY = 4, 5, 6

-- Acks of one kind of holder: after their number the session, if it is a session; then the ids, each with its lease, if it is a lease; then
-- the result of each, if one has any.
local function read_acks(header)
    local holder, size = struct.unpack('<BI4', header, 2)
    local acks, place, step = { holder = holder, ids = {}, leases = {} }, 7, 8
    if holder == BY_LEASE then
        step = 16
    elseif holder ~= BY_ANY_CALLER then
        acks.who = string.sub(header, place, place + 15)
        place = place + 16
    end
    for item = 1, size do
        acks.ids[item] = string.sub(header, place, place + 7)
        acks.leases[item] = step == 16 and string.sub(header, place + 8, place + 15) or nil
        place = place + step
    end
    if place <= #header then
        acks.results = {}
        for item = 1, size do
            acks.results[item], place = struct.unpack('<I4c0', header, place)
        end
    end
    return acks
end

-- Ends a delivery without ack: the task is ready again, or delayed, or buried because its attempts are used up. If it failed, the cause
-- is given.
local function give_back(tube, id, task, delay, counted, call, cause)
    if cause then
        failures.add(tube, id, task, cause, call == 'ttr')
    end
    leave(tube, id, task)
    local used_up = false
    if counted then
        -- A task whose time to run is over is ready since then, not since the tick that notices it.
        task.previous, task.since = task.since or task.created, call == 'ttr' and task.moment or tube.now
        local most = task.most or tube.options.attempts_max
        task.attempts, used_up = count_attempt(task.attempts, most > 0 and most or nil)
    end
    undeliver(task)
    if used_up then
        task.state = DEAD_LETTER
        count(tube, 'bury')
    elseif delay == 0 then
        task.state = READY
    else
        task.state, task.moment = DELAYED, later(tube.now, delay)
        task.expires = later(task.expires, delay)
    end
    enter(tube, id, task)
    count(tube, call)
end

-- Gives back these taken tasks. If they failed, the cause is given.
local function give_back_all(tube, ids, counted, cause)
    load(tube, ids)
    for _, id in ipairs(ids) do
        give_back(tube, id, tube.tasks[id], 0, counted, 'release', cause)
    end
    if tube.options.semaphore ~= '' then
        -- They are added to the semaphore in their order. Sorting is slow, so only then.
        table.sort(ids)
        gates.regate(tube, ids)
    end
end

function verbs.release_all(tube, _, call)
    give_back_all(tube, taken_ids(tube), true)
    call:answer('\0')
end

-- Gives back what an ended session holds. A byte follows the session if its last server was declared dead.
function verbs.end_session(tube, header, call)
    local session = string.sub(header, 2, 17)
    flush(tube)
    local ids = redis.call('ZRANGEBYLEX', tube.base .. ':s', '[' .. session, '[' .. session .. string.rep('\255', 8))
    for item, member in ipairs(ids) do
        ids[item] = string.sub(member, 17)
    end
    give_back_all(tube, ids, true, #header > 17 and failures.SERVER_LOST or failures.SESSION_ENDED)
    call:answer('\0' .. struct.pack('<d', #ids))
end

-- Undoes deliveries with these lease numbers, whose replies were lost: no attempt is counted.
function verbs.undo_unacknowledged(tube, header, call)
    local first, last = string.sub(header, 2, 9), string.sub(header, 10, 17)
    local ids, lost = taken_ids(tube), {}
    load(tube, ids)
    for _, id in ipairs(ids) do
        local lease = tube.tasks[id].lease
        if lease >= first and lease <= last then
            lost[#lost + 1] = id
        end
    end
    give_back_all(tube, lost, false)
    call:answer('\0')
end
