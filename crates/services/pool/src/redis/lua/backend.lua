-- What backends ask.

local function group(base)
    redis.pcall('XGROUP', 'CREATE', base .. 'queue.outcoming', 'backend', '0', 'MKSTREAM')
end

-- A backend lives: its number (or nothing, for a new one), lease in milliseconds, what others may know of it, the memory of Redis
-- that it knows, then for each of its tasks, those too that have just ended: number, attempt, class, kind, limit, start, whether it may run again, wish. Answers its
-- number, which memory this is, and for each task its limit, or nothing where it has to end.
local function beat(keys, args)
    local base, backend, known = keys[1], args[1], args[4]
    local memory = life(base)
    witness(base, known, memory)
    -- Who comes when places are given away again has been passed over: what it runs is not its task's own any more.
    local returns = known ~= memory and not settled(base, memory)
    if backend == '' then
        backend = whole(redis.call('INCR', base .. 'backend.counter'))
    end
    redis.call('SET', base .. 'backend:' .. backend, args[3], 'PX', args[2])
    if redis.call('SADD', base .. 'backend.set', backend) == 1 then
        group(base)
        redis.call('RPUSH', base .. 'backend.updated', backend)
        wake_scheduler(base)
    end
    local answer, own = { backend, memory }, {}
    for at = 5, #args, 8 do
        local id = args[at]
        if returns and redis.call('HEXISTS', base .. 'queue.executing', id) == 0 then
            -- Its gateway had not heard yet that it runs.
            if redis.call('ZREM', base .. 'queue', id) == 1 then
                finished(base, 'left ' .. id)
            end
            allocate(base, { id = id, attempt = args[at + 1], class = args[at + 2], kind = args[at + 3], limit = args[at + 4],
                started = args[at + 5], again = args[at + 6], wish = args[at + 7] })
            redis.call('HSET', base .. 'queue.processing', id, backend)
        end
        local alloc = allocation(base, id)
        local mine = alloc and alloc.attempt == args[at + 1]
        -- A task whose gateway is gone runs for nobody; after a loss of everything gateways need a moment to come back.
        local young = age_ms(memory) < 2 * tonumber(args[2])
        local wanted = young or redis.call('EXISTS', task_key(base, id)) == 1
        answer[#answer + 1] = mine and wanted and alloc.limit or ''
        own[id] = true
    end
    -- What it was given in an answer that never came to it.
    local processing = redis.call('HGETALL', base .. 'queue.processing')
    for at = 1, #processing, 2 do
        if processing[at + 1] == backend and not own[processing[at]] then
            local alloc = allocation(base, processing[at])
            if alloc then
                finished(base, 'lost ' .. processing[at] .. ' ' .. alloc.attempt)
            end
        end
    end
    return answer
end

-- A free backend takes the next task that is offered: its number, and the address where its client's gateway finds it.
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
                tell_gateway(base, id, 'backend ' .. id .. ' ' .. attempt .. ' ' .. address)
                return { id, attempt, alloc.class, alloc.kind, alloc.limit, alloc.started, alloc.again, alloc.wish, task[1], task[2],
                    task[3], task[4], redis.call('HGETALL', key .. ':files') }
            end
            free(base, id)
            finished(base, 'gone ' .. id .. ' ' .. attempt)
        end
    end
end

-- How long it is kept that a run ended whose task nobody has brought back yet, in milliseconds.
local OVER_MS = 60000

-- A run ended: task, attempt, how, how long it took and how much longer than it might, in microseconds. Answers whether it was the
-- task's own, and which memory this is.
local function finish(keys, args)
    local base, id, attempt, how = keys[1], args[1], args[2], args[3]
    local memory, key = life(base), task_key(base, id)
    local alloc = allocation(base, id)
    if not alloc or alloc.attempt ~= attempt then
        return { 0, memory }
    end
    if how == 'lost' then
        redis.call('HDEL', base .. 'queue.processing', id)
        finished(base, 'lost ' .. id .. ' ' .. attempt)
        return { 1, memory }
    end
    free(base, id)
    -- A gateway that has still to bring the task back hears then that it ran.
    if redis.call('EXISTS', key) == 1 or not settled(base, memory) then
        redis.call('HSET', key, 'over', attempt)
        redis.call('DEL', key .. ':queue.estimate', key .. ':control')
        if redis.call('PTTL', key) < 0 then
            redis.call('PEXPIRE', key, OVER_MS)
        end
    end
    finished(base, how .. ' ' .. id .. ' ' .. attempt .. ' ' .. args[4] .. ' ' .. args[5])
    return { 1, memory }
end

-- A backend leaves. What it still had is lost with it.
local function depart(keys, args)
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
            finished(base, 'lost ' .. alloc.id .. ' ' .. alloc.attempt)
        end
    end
    wake_scheduler(base)
    return 0
end

-- How the pool is, for whoever looks: which memory this is, who leads, what that one said last, backends, those who hold them, how many wait.
local function look(keys)
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

redis.register_function(NAME .. '_beat', beat)
redis.register_function(NAME .. '_claim', claim)
redis.register_function({ function_name = NAME .. '_finish', callback = finish, flags = { 'allow-oom' } })
redis.register_function({ function_name = NAME .. '_depart', callback = depart, flags = { 'allow-oom' } })
redis.register_function({ function_name = NAME .. '_look', callback = look, flags = { 'no-writes', 'allow-stale' } })
