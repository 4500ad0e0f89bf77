-- Functions that gateways call.

-- Submits a task: gateway, lease in milliseconds, id it had before a data loss (or empty), whether it waits, whether its client has
-- seen output, how often it was requeued, how it asks to run, for how long, most tasks that may arrive before a scheduler reads them,
-- then the fields of the task, then names and bytes of its files.
local function submit(keys, args)
    local base, gateway, lease, again = keys[1], args[1], args[2], args[3]
    local now = incarnation(base)
    local id = again
    if again == '' then
        if redis.call('LLEN', base .. 'queue.incoming') >= tonumber(args[9]) then
            return { 'full', now }
        end
        id = integer(redis.call('INCR', base .. 'task.counter'))
    elseif tonumber(again) > tonumber(redis.call('GET', base .. 'task.counter')) then
        redis.call('SET', base .. 'task.counter', again)
    end
    local key = task_key(base, id)
    if again ~= '' then
        if redis.call('HGET', key, 'life') == now then
            return { id, now }
        end
        local over = redis.call('HGET', key, 'over')
        delete_task(base, id)
        if over then
            redis.call('HSET', key, 'over', over)
        end
        note_earlier(base, 'another', now)
    end
    redis.call('HSET', key, 'life', now, 'gateway', gateway, 'seen', args[5], 'tries', args[6], 'ask', args[7], 'duration', args[8], 'arrived',
        integer(now_ms()), 'program', args[10], 'options', args[11], 'main', args[12], 'words', args[13])
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

-- Renews the leases of a gateway's tasks: lease in milliseconds, the incarnation of Redis that it knows, then their ids. Returns the
-- incarnation, and the tasks that have expired.
local function refresh(keys, args)
    local base = keys[1]
    local answer = { incarnation(base) }
    note_earlier(base, args[2], answer[1])
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

-- Withdraws a task: its client left, or has received the last frame. Returns the address of the backend that has the task, if there
-- is one; the gateway informs it by closing a connection.
local function withdraw(keys, args)
    local base, id = keys[1], args[1]
    local alloc = allocation(base, id)
    local address = redis.call('LINDEX', task_key(base, id) .. ':backend', -1)
    if redis.call('ZREM', base .. 'queue', id) == 1 then
        push_finished(base, 'left ' .. id)
    elseif alloc and redis.call('HEXISTS', base .. 'queue.processing', id) == 0 then
        free(base, id)
        push_finished(base, 'gone ' .. id .. ' ' .. alloc.attempt)
    end
    local there = redis.call('EXISTS', task_key(base, id))
    delete_task(base, id)
    return { alloc and address or '', there }
end

-- Marks that the client is about to see output of this run: it does not run again. Returns `shown`, or why not: `refused` if the run is
-- not the task's current one, `later` if its backend may still have to report it, `gone`; and the incarnation.
local function mark_seen(keys, args)
    local base, id, attempt = keys[1], args[1], args[2]
    local current, key = incarnation(base), task_key(base, id)
    local alloc = allocation(base, id)
    if redis.call('EXISTS', key) == 0 then
        return { 'gone', current }
    elseif alloc and alloc.attempt == attempt or redis.call('HGET', key, 'over') == attempt then
        redis.call('HSET', key, 'seen', '1')
        return { 'shown', current }
    end
    return { not alloc and not settled(base, current) and 'later' or 'refused', current }
end

-- Decides about a task whose run has no connection any more, that holds no backend and does not wait: its backend did not report after
-- a data loss.
local function resolve_unreported(base, id)
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

-- Requeues a task whose run ended on a backend that was gone before the client had seen output, unless it was requeued too often.
local function requeue_unseen(base, id, most)
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

-- The connection to the backend broke, or its run was refused: task, attempt, and how often a task may be requeued.
-- Returns what becomes of the task, and the incarnation.
local function report_lost(keys, args)
    local base, id, attempt = keys[1], args[1], args[2]
    local current, key = incarnation(base), task_key(base, id)
    local alloc = allocation(base, id)
    -- After a data loss the end of the run may be stored before the task was submitted again.
    if redis.call('HEXISTS', key, 'life') == 0 then
        return { 'gone', current }
    elseif alloc and alloc.attempt == attempt then
        push_finished(base, 'lost ' .. id .. ' ' .. attempt)
        return { 'reported', current }
    elseif redis.call('HGET', key, 'over') == attempt then
        return { requeue_unseen(base, id, args[3]), current }
    elseif alloc then
        return { 'waits', current }
    elseif not settled(base, current) then
        return { 'later', current }
    end
    return { resolve_unreported(base, id), current }
end

-- The client lowers the duration. The scheduler reads it from the list of incoming tasks.
local function lower_duration(keys, args)
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

-- State of tasks for gateways that may have missed messages: for each task its id, address of its backend, how it ended, its last
-- estimate, the last command for its program and its run, the run that is over, whether the task is known, and the run that holds a
-- backend: empty if there is none, and `?` if one may still have to be reported.
local function peek(keys, args)
    local base, answer = keys[1], {}
    local none = settled(base, incarnation(base)) and '' or '?'
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

redis.register_function(NAME .. '_submit', submit)
redis.register_function(NAME .. '_refresh', refresh)
redis.register_function({ function_name = NAME .. '_withdraw', callback = withdraw, flags = { 'allow-oom' } })
redis.register_function(NAME .. '_mark_seen', mark_seen)
redis.register_function(NAME .. '_report_lost', report_lost)
redis.register_function(NAME .. '_lower_duration', lower_duration)
redis.register_function(NAME .. '_peek', peek)
