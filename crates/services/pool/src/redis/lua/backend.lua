-- Functions that backends call.

local function group(base)
    redis.pcall('XGROUP', 'CREATE', base .. 'queue.outcoming', 'backend', '0', 'MKSTREAM')
end

-- The command that halted this run, which may still be on its way to the gateway; empty if it was not halted.
local function halted(base, id, attempt)
    local last = redis.call('XREVRANGE', task_key(base, id) .. ':control', '+', '-', 'COUNT', 1)[1]
    local text = last and last[2][1] == attempt and last[2][2] or ''
    return string.sub(text, 1, 5) == 'halt ' and text or ''
end

-- Heartbeat of a backend: its number (empty for a new one), lease in milliseconds, its description for the status, the incarnation of
-- Redis that it knows, then for each of its tasks, including those that have just ended: id, attempt, class, kind, limit, start, whether it
-- may run again, requested duration. Returns its number, the incarnation, and for each task its limit, or `halt` and why if it was
-- halted, or an empty text if it has to end for another reason.
local function heartbeat(keys, args)
    local base, backend, known = keys[1], args[1], args[4]
    local current = incarnation(base)
    note_earlier(base, known, current)
    -- A backend that reports after the incarnation was settled is too late: its run is not the task's current one any more.
    local returns = known ~= current and not settled(base, current)
    if backend == '' then
        backend = integer(redis.call('INCR', base .. 'backend.counter'))
    end
    redis.call('SET', base .. 'backend:' .. backend, args[3], 'PX', args[2])
    if redis.call('SADD', base .. 'backend.set', backend) == 1 then
        group(base)
        redis.call('RPUSH', base .. 'backend.updated', backend)
        wake_scheduler(base)
    end
    local answer, own = { backend, current }, {}
    for at = 5, #args, 8 do
        local id = args[at]
        if returns and redis.call('HEXISTS', base .. 'queue.executing', id) == 0 then
            -- Its gateway did not know yet that it runs.
            if redis.call('ZREM', base .. 'queue', id) == 1 then
                push_finished(base, 'left ' .. id)
            end
            allocate(base, { id = id, attempt = args[at + 1], class = args[at + 2], kind = args[at + 3], limit = args[at + 4],
                started = args[at + 5], again = args[at + 6], wish = args[at + 7] })
            redis.call('HSET', base .. 'queue.processing', id, backend)
        end
        local alloc = allocation(base, id)
        local is_own = alloc and alloc.attempt == args[at + 1]
        -- A task whose gateway is gone has to end; after a data loss gateways need time to submit their tasks again.
        local is_young = age_ms(current) < 2 * tonumber(args[2])
        local wanted = is_young or redis.call('EXISTS', task_key(base, id)) == 1
        answer[#answer + 1] = is_own and wanted and alloc.limit or halted(base, id, args[at + 1])
        own[id] = true
    end
    -- Tasks that it claimed without receiving the reply.
    local processing = redis.call('HGETALL', base .. 'queue.processing')
    for at = 1, #processing, 2 do
        if processing[at + 1] == backend and not own[processing[at]] then
            local alloc = allocation(base, processing[at])
            if alloc then
                push_finished(base, 'lost ' .. processing[at] .. ' ' .. alloc.attempt)
            end
        end
    end
    return answer
end

-- A free backend claims the next offered task: its number, and its address for the gateway of the task.
local function claim(keys, args)
    local base, backend, address = keys[1], args[1], args[2]
    if redis.call('SISMEMBER', base .. 'backend.set', backend) == 0 or redis.call('EXISTS', base .. 'backend:' .. backend) == 0 then
        return { 'unknown' }
    end
    while true do
        local read = redis.pcall('XREADGROUP', 'GROUP', 'backend', backend, 'COUNT', 1, 'STREAMS', base .. 'queue.outcoming', '>')
        if not read or read.err then
            group(base)
            return {}
        end
        local entry = read[1][2][1]
        local id, attempt = entry[2][2], entry[2][4]
        redis.call('XACK', base .. 'queue.outcoming', 'backend', entry[1])
        redis.call('XDEL', base .. 'queue.outcoming', entry[1])
        local alloc, key = allocation(base, id), task_key(base, id)
        if alloc and alloc.attempt == attempt then
            local task = redis.call('HMGET', key, 'program', 'options', 'main', 'words')
            if task[1] then
                redis.call('HSET', base .. 'queue.processing', id, backend)
                redis.call('RPUSH', key .. ':backend', attempt .. ' ' .. address)
                redis.call('PEXPIRE', key .. ':backend', math.max(redis.call('PTTL', key), 1))
                publish_to_gateway(base, id, 'backend ' .. id .. ' ' .. attempt .. ' ' .. address)
                return { id, attempt, alloc.class, alloc.kind, alloc.limit, alloc.started, alloc.again, alloc.wish, task[1], task[2],
                    task[3], task[4], redis.call('HGETALL', key .. ':files') }
            end
            free(base, id)
            push_finished(base, 'gone ' .. id .. ' ' .. attempt)
        end
    end
end

-- How long the end of a run is stored whose task was not submitted again yet, in milliseconds.
local OVER_MS = 60000

-- A run ended: task, attempt, outcome, how long it took and how long beyond its limit, in microseconds. Returns whether it was the
-- task's current run, and the incarnation.
local function finish(keys, args)
    local base, id, attempt, how = keys[1], args[1], args[2], args[3]
    local current, key = incarnation(base), task_key(base, id)
    local alloc = allocation(base, id)
    if not alloc or alloc.attempt ~= attempt then
        return { 0, current }
    end
    if how == 'lost' then
        redis.call('HDEL', base .. 'queue.processing', id)
        push_finished(base, 'lost ' .. id .. ' ' .. attempt)
        return { 1, current }
    end
    free(base, id)
    -- A gateway that has still to submit the task again learns then that it ran.
    if redis.call('EXISTS', key) == 1 or not settled(base, current) then
        redis.call('HSET', key, 'over', attempt)
        redis.call('DEL', key .. ':queue.estimate', key .. ':control')
        if redis.call('PTTL', key) < 0 then
            redis.call('PEXPIRE', key, OVER_MS)
        end
    end
    push_finished(base, how .. ' ' .. id .. ' ' .. attempt .. ' ' .. args[4] .. ' ' .. args[5])
    return { 1, current }
end

-- Removes a backend. Its remaining tasks are lost.
local function deregister(keys, args)
    local base, backend = keys[1], args[1]
    redis.call('DEL', base .. 'backend:' .. backend)
    redis.call('SREM', base .. 'backend.set', backend)
    redis.call('RPUSH', base .. 'backend.updated', backend)
    redis.pcall('XGROUP', 'DELCONSUMER', base .. 'queue.outcoming', 'backend', backend)
    local processing = redis.call('HGETALL', base .. 'queue.processing')
    for at = 1, #processing, 2 do
        local alloc = processing[at + 1] == backend and allocation(base, processing[at])
        if alloc then
            redis.call('HDEL', base .. 'queue.processing', processing[at])
            push_finished(base, 'lost ' .. alloc.id .. ' ' .. alloc.attempt)
        end
    end
    wake_scheduler(base)
    return 0
end

-- Status of the pool: incarnation, leader, the leader's last status, backends, allocations, number of waiting tasks.
local function status(keys)
    local base = keys[1]
    local backends = {}
    for _, backend in ipairs(redis.call('SMEMBERS', base .. 'backend.set')) do
        local about = redis.call('GET', base .. 'backend:' .. backend)
        if about then
            backends[#backends + 1] = backend .. ' ' .. about
        end
    end
    local running = {}
    local all = redis.call('HGETALL', base .. 'queue.executing')
    for at = 1, #all, 2 do
        local backend = redis.call('HGET', base .. 'queue.processing', all[at]) or '-'
        running[#running + 1] = all[at] .. ' ' .. backend .. ' ' .. all[at + 1]
    end
    return { redis.call('GET', base .. 'pool.life') or '', redis.call('GET', base .. 'scheduler.leader') or '',
        redis.call('GET', base .. 'scheduler.status') or '', backends, running, redis.call('ZCARD', base .. 'queue') + redis.call('LLEN', base .. 'queue.incoming') }
end

redis.register_function(NAME .. '_heartbeat', heartbeat)
redis.register_function(NAME .. '_claim', claim)
redis.register_function({ function_name = NAME .. '_finish', callback = finish, flags = { 'allow-oom' } })
redis.register_function({ function_name = NAME .. '_deregister', callback = deregister, flags = { 'allow-oom' } })
redis.register_function({ function_name = NAME .. '_status', callback = status, flags = { 'no-writes', 'allow-stale' } })
