-- What gateways ask.

-- A task arrives: gateway, lease in milliseconds, number it had before Redis lost everything (or nothing), whether it
-- waits, whether its client saw something of it, how often it was put back, how it wants to run, for how long, most that may
-- arrive before a scheduler looks, then the fields of the task, then names and bytes of its files.
local function arrive(keys, args)
    local base, gateway, lease, again = keys[1], args[1], args[2], args[3]
    local now = life(base)
    local id = again
    if again == '' then
        if redis.call('LLEN', base .. 'queue.incoming') >= tonumber(args[9]) then
            return { 'full', now }
        end
        id = whole(redis.call('INCR', base .. 'task.counter'))
    elseif tonumber(again) > tonumber(redis.call('GET', base .. 'task.counter')) then
        redis.call('SET', base .. 'task.counter', again)
    end
    local key = task_key(base, id)
    if again ~= '' then
        if redis.call('HGET', key, 'life') == now then
            return { id, now }
        end
        local over = redis.call('HGET', key, 'over')
        forget_task(base, id)
        if over then
            redis.call('HSET', key, 'over', over)
        end
        witness(base, 'another', now)
    end
    redis.call('HSET', key, 'life', now, 'gateway', gateway, 'seen', args[5], 'tries', args[6], 'ask', args[7], 'duration', args[8], 'arrived',
        whole(now_ms()), 'program', args[10], 'options', args[11], 'main', args[12], 'words', args[13])
    redis.call('PEXPIRE', key, lease)
    if #args > 13 then
        redis.call('HSET', key .. ':files', unpack(args, 14))
        redis.call('PEXPIRE', key .. ':files', lease)
    end
    if args[4] == '1' then
        redis.call('RPUSH', base .. 'queue.incoming', id)
        wake_scheduler(base)
    end
    return { id, now }
end

-- Tasks of a gateway that lives: lease in milliseconds, the memory of Redis that it knows, then their numbers. Answers which
-- memory this is, and those that are gone.
local function refresh(keys, args)
    local base = keys[1]
    local answer = { life(base) }
    witness(base, args[2], answer[1])
    for at = 3, #args do
        local key = task_key(base, args[at])
        if redis.call('PEXPIRE', key, args[1]) == 1 then
            for _, part in ipairs({ ':files', ':backend', ':control' }) do
                redis.call('PEXPIRE', key .. part, args[1])
            end
        else
            answer[#answer + 1] = args[at]
        end
    end
    return answer
end

-- A client left, or has heard everything. Answers the backend that has to be told by closing its connection, if one has
-- the task.
local function leave(keys, args)
    local base, id = keys[1], args[1]
    local alloc = allocation(base, id)
    local address = redis.call('LINDEX', task_key(base, id) .. ':backend', -1)
    if redis.call('ZREM', base .. 'queue', id) == 1 then
        finished(base, 'left ' .. id)
    elseif alloc and redis.call('HEXISTS', base .. 'queue.processing', id) == 0 then
        free(base, id)
        finished(base, 'gone ' .. id .. ' ' .. alloc.attempt)
    end
    local there = redis.call('EXISTS', task_key(base, id))
    forget_task(base, id)
    return { alloc and address or '', there }
end

-- The client is about to see something of this run: it does not run again. Answers `shown`, or why not: `refused` where the
-- run is not the task's own any more, `later` where its backend may still have to come back, `gone`; and which memory this is.
local function show(keys, args)
    local base, id, attempt = keys[1], args[1], args[2]
    local memory, key = life(base), task_key(base, id)
    local alloc = allocation(base, id)
    if redis.call('EXISTS', key) == 0 then
        return { 'gone', memory }
    elseif alloc and alloc.attempt == attempt or redis.call('HGET', key, 'over') == attempt then
        redis.call('HSET', key, 'seen', '1')
        return { 'shown', memory }
    end
    return { not alloc and not settled(base, memory) and 'later' or 'refused', memory }
end

-- A run that its gateway does not hear any more, of a task that nobody holds and that does not wait: its backend did not come
-- back after Redis lost everything.
local function forsaken(base, id)
    local has = redis.call('HMGET', task_key(base, id), 'seen', 'ask', 'end')
    if has[3] or redis.call('ZSCORE', base .. 'queue', id) or redis.call('LPOS', base .. 'queue.incoming', id) then
        return 'waits'
    elseif has[1] == '1' or has[2] == 'interactive' then
        return 'lost'
    end
    redis.call('RPUSH', base .. 'queue.incoming', id)
    wake_scheduler(base)
    return 'waits'
end

-- A run ended, and its backend was gone before its client had seen anything of it: it takes its place again, unless it did so often
-- enough.
local function unheard(base, id, most)
    local key = task_key(base, id)
    local has = redis.call('HMGET', key, 'seen', 'ask', 'tries')
    if has[1] == '1' or has[2] == 'interactive' or tonumber(has[3]) >= tonumber(most) then
        return 'over'
    end
    redis.call('HDEL', key, 'over')
    redis.call('HINCRBY', key, 'tries', 1)
    redis.call('DEL', key .. ':backend')
    redis.call('RPUSH', base .. 'queue.incoming', id)
    wake_scheduler(base)
    return 'waits'
end

-- The connection to the backend broke, or its run was refused: task, attempt, and how often a task takes its place again at most.
-- Answers what becomes of the task, and which memory this is.
local function lose(keys, args)
    local base, id, attempt = keys[1], args[1], args[2]
    local memory, key = life(base), task_key(base, id)
    local alloc = allocation(base, id)
    if redis.call('EXISTS', key) == 0 then
        return { 'gone', memory }
    elseif alloc and alloc.attempt == attempt then
        finished(base, 'lost ' .. id .. ' ' .. attempt)
        return { 'told', memory }
    elseif redis.call('HGET', key, 'over') == attempt then
        return { unheard(base, id, args[3]), memory }
    elseif alloc then
        return { 'waits', memory }
    elseif not settled(base, memory) then
        return { 'later', memory }
    end
    return { forsaken(base, id), memory }
end

-- The client wants less time. The scheduler finds it where newcomers come.
local function wish(keys, args)
    local base, id, wanted = keys[1], args[1], args[2]
    local key = task_key(base, id)
    local has = redis.call('HMGET', key, 'ask', 'duration')
    if not has[1] then
        return 'missing'
    elseif has[1] == 'interactive' then
        return 'interactive'
    elseif tonumber(wanted) > tonumber(has[2]) then
        return 'raised'
    end
    redis.call('HSET', key, 'duration', wanted)
    redis.call('RPUSH', base .. 'queue.incoming', id)
    wake_scheduler(base)
    return 'done'
end

-- What gateways are told by messages, for those that may have missed one: for each task its number, address of its backend,
-- how it ended, what it was told last, what its program is told and in which run, the run that is over, whether it is known, and the
-- run that holds a backend: nothing where there is none, and `?` where one may still have to come back.
local function peek(keys, args)
    local base, answer = keys[1], {}
    local none = settled(base, life(base)) and '' or '?'
    for _, id in ipairs(args) do
        local key = task_key(base, id)
        local control = redis.call('XREVRANGE', key .. ':control', '+', '-', 'COUNT', 1)
        local alloc = allocation(base, id)
        answer[#answer + 1] = { id, redis.call('LINDEX', key .. ':backend', -1) or '', redis.call('HGET', key, 'end') or '',
            redis.call('GET', key .. ':queue.estimate') or '', control[1] and table.concat(control[1][2], ' ') or '',
            redis.call('HGET', key, 'over') or '', redis.call('HGET', key, 'program') and '1' or '', alloc and alloc.attempt or none }
    end
    return answer
end

redis.register_function(NAME .. '_arrive', arrive)
redis.register_function(NAME .. '_refresh', refresh)
redis.register_function({ function_name = NAME .. '_leave', callback = leave, flags = { 'allow-oom' } })
redis.register_function(NAME .. '_show', show)
redis.register_function(NAME .. '_lose', lose)
redis.register_function(NAME .. '_wish', wish)
redis.register_function(NAME .. '_peek', peek)
