-- Functions that schedulers call. Each call but the first carries the number of the scheduler's lead, and changes nothing if that
-- is not the number in the lock: a scheduler that was paused past its lease is refused.

local function leads(base, number)
    -- After a data loss there is no leader.
    incarnation(base)
    local lock = redis.call('GET', base .. 'scheduler.leader')
    return lock and split(lock)[1] == number
end

local function not_leader()
    return redis.error_reply('NOTLEADER another scheduler leads, or none does')
end

-- Acquires or renews the lead: name of the scheduler, lease in milliseconds, status of the pool, the incarnation of Redis that the
-- scheduler knows, and the number of its lead, or an empty text to begin a new lead. A new lead gets a new number even if the lock is
-- its own: runs are numbered from one in each lead, and no two runs may have the same name. Returns the number (or 0), the clock of
-- Redis in microseconds, the incarnation, and the lock.
local function acquire_lead(keys, args)
    local base, who, lease = keys[1], args[1], args[2]
    local current = incarnation(base)
    note_earlier(base, args[4], current)
    local clock = integer(now_us())
    local lock = redis.call('GET', base .. 'scheduler.leader')
    local own = lock and split(lock)[2] == who
    local number = '0'
    if args[5] == '' and (own or not lock) then
        number = integer(redis.call('INCR', base .. 'scheduler.counter'))
        lock = number .. ' ' .. who
        redis.call('SET', base .. 'scheduler.leader', lock, 'PX', lease)
    elseif own and split(lock)[1] == args[5] then
        number = args[5]
        redis.call('PEXPIRE', base .. 'scheduler.leader', lease)
    end
    if number ~= '0' and args[3] ~= '' then
        redis.call('SET', base .. 'scheduler.status', args[3], 'PX', tonumber(lease) * 2)
    end
    return { number, clock, current, lock or '' }
end

-- Releases the lead.
local function release_lead(keys, args)
    if leads(keys[1], args[1]) then
        redis.call('DEL', keys[1] .. 'scheduler.leader')
        wake_scheduler(keys[1])
    end
    return 0
end

local function task_fields(base, id)
    local has = redis.call('HMGET', task_key(base, id), 'ask', 'duration', 'arrived', 'tries')
    if not has[1] then
        return nil
    end
    return id .. ' ' .. table.concat(has, ' ')
end

local function take_incoming(base, most, answer)
    local ids = redis.call('LPOP', base .. 'queue.incoming', most) or {}
    for _, id in ipairs(ids) do
        local text = task_fields(base, id)
        if text and redis.call('HEXISTS', base .. 'queue.executing', id) == 1 then
            answer[#answer + 1] = 'wish ' .. text
        elseif text and redis.call('HEXISTS', task_key(base, id), 'end') == 0
            and redis.call('HEXISTS', task_key(base, id), 'over') == 0 then
            local new = redis.call('ZADD', base .. 'queue', 'NX', id, id) == 1
            answer[#answer + 1] = (new and 'arrive ' or 'wish ') .. text
        end
    end
end

local function list_running(base, id, answer)
    local tries = redis.call('HGET', task_key(base, id), 'tries') or '0'
    answer[#answer + 1] = 'runs ' .. id .. ' ' .. redis.call('HGET', base .. 'queue.executing', id) .. ' ' .. tries
    -- A lower duration that the client requested may be known only to a scheduler that is gone.
    local wanted = redis.call('HGET', task_key(base, id), 'duration')
    if wanted and tonumber(wanted) < tonumber(allocation(base, id).wish) then
        answer[#answer + 1] = 'wish ' .. task_fields(base, id)
    end
end

local function list_lost(base, alloc, answer)
    local seen = redis.call('HGET', task_key(base, alloc.id), 'seen')
    if seen then
        -- A scheduler that has just taken the lead has to know it before it is lost.
        list_running(base, alloc.id, answer)
        answer[#answer + 1] = 'lost ' .. alloc.id .. ' ' .. alloc.attempt .. ' ' .. seen
    elseif free(base, alloc.id) then
        answer[#answer + 1] = 'gone ' .. alloc.id .. ' ' .. alloc.attempt
    end
end

local function take_finished(base, most, answer)
    for _, text in ipairs(redis.call('LPOP', base .. 'queue.finished', most) or {}) do
        local parts = split(text)
        local alloc = parts[1] == 'lost' and allocation(base, parts[2])
        if parts[1] ~= 'lost' then
            answer[#answer + 1] = text
        elseif alloc and alloc.attempt == parts[3] then
            list_lost(base, alloc, answer)
        end
    end
end

-- Removes backends whose lease has expired.
local function live_backends(base)
    local count, live = 0, {}
    for _, backend in ipairs(redis.call('SMEMBERS', base .. 'backend.set')) do
        if redis.call('EXISTS', base .. 'backend:' .. backend) == 1 then
            count, live[backend] = count + 1, true
        else
            redis.call('SREM', base .. 'backend.set', backend)
        end
    end
    redis.call('DEL', base .. 'backend.updated')
    return count, live
end

-- How long an offer may remain unclaimed before it is repeated, in milliseconds. Free backends poll for offers each second.
local OFFER_MS = 5000

-- Whether no backend has claimed it yet.
local function is_offered(base, id)
    return redis.call('HEXISTS', base .. 'queue.processing', id) == 0
        and redis.call('EXISTS', task_key(base, id) .. ':backend') == 0
end

-- Withdraws an offer. If its client is gone, the task is gone too, and a session does not wait.
local function withdraw_offer(base, alloc, answer)
    if alloc.kind == 'interactive' or redis.call('EXISTS', task_key(base, alloc.id)) == 0 then
        return list_lost(base, alloc, answer)
    end
    free(base, alloc.id)
    redis.call('ZADD', base .. 'queue', alloc.id, alloc.id)
    answer[#answer + 1] = 'unclaimed ' .. alloc.id .. ' ' .. alloc.attempt
end

-- Withdraws offers for which there is no backend any more, the last one first. Otherwise they would wait for the end of a session,
-- which has to end for waiting tasks.
local function withdraw_offers(base, count, live, answer)
    if redis.call('HLEN', base .. 'queue.executing') <= count then
        return
    end
    local offered, held = {}, 0
    for _, id in ipairs(redis.call('HKEYS', base .. 'queue.executing')) do
        local backend = redis.call('HGET', base .. 'queue.processing', id)
        if backend and live[backend] then
            held = held + 1
        elseif is_offered(base, id) then
            offered[#offered + 1] = id
        end
    end
    table.sort(offered, function(one, other) return tonumber(one) > tonumber(other) end)
    for at = 1, math.min(#offered, held + #offered - count) do
        withdraw_offer(base, allocation(base, offered[at]), answer)
    end
end

-- Finds what no message announces: lost backends, lost gateways, and all tasks that hold a backend.
local function scan_allocations(base, live, answer)
    local all = redis.call('HKEYS', base .. 'queue.executing')
    for _, id in ipairs(all) do
        local alloc = allocation(base, id)
        local backend = redis.call('HGET', base .. 'queue.processing', id)
        local address = redis.call('LINDEX', task_key(base, id) .. ':backend', -1)
        -- One that was claimed and has no backend any more was lost too.
        local left = not backend and address and split(address)[1] == alloc.attempt
        if backend and not live[backend] or left then
            list_lost(base, alloc, answer)
        elseif not backend and redis.call('EXISTS', task_key(base, id)) == 0 then
            free(base, id)
            answer[#answer + 1] = 'gone ' .. id .. ' ' .. alloc.attempt
        elseif is_offered(base, id) and now_ms() - tonumber(alloc.started) > OFFER_MS then
            withdraw_offer(base, alloc, answer)
        else
            list_running(base, id, answer)
        end
    end
    answer[#answer + 1] = 'swept'
end

local function scan_queue(base, from, count, answer)
    local page = redis.call('ZRANGEBYSCORE', base .. 'queue', '(' .. from, '+inf', 'LIMIT', 0, count)
    for _, id in ipairs(page) do
        local text = task_fields(base, id)
        if text then
            answer[#answer + 1] = 'waits ' .. text
        else
            redis.call('ZREM', base .. 'queue', id)
            answer[#answer + 1] = 'left ' .. id
        end
    end
    return #page == count and page[count] or '0'
end

-- How many milliseconds no task may start: the lease of a backend if a part knows an earlier incarnation, otherwise only until all
-- parts have reported. The incarnation is settled in the call that lists all tasks that hold a backend.
local function start_delay(base, backend_lease, report_time, scans)
    local current = incarnation(base)
    if settled(base, current) then
        return 0
    end
    local lasts = redis.call('GET', base .. 'pool.witness') == current and backend_lease or report_time
    local left = tonumber(lasts) - age_ms(current)
    if left <= 0 and scans then
        redis.call('SET', base .. 'pool.settled', current)
        return 0
    end
    return math.max(left, 1)
end

-- Collects all events: number of the lead, most events of each kind, whether to scan for what no message announces, the task after
-- which the scan of the queue continues and how many tasks it lists, lease of a backend, and how long it takes until every part has
-- reported, in milliseconds. Returns the number of live backends, how long nothing may start, and where the scan continues.
local function collect_events(keys, args)
    local base = keys[1]
    if not leads(base, args[1]) then
        return not_leader()
    end
    local answer = { 0, start_delay(base, args[6], args[7], args[3] == '1'), '0' }
    local count, live = live_backends(base)
    answer[1] = count
    take_finished(base, args[2], answer)
    withdraw_offers(base, count, live, answer)
    take_incoming(base, args[2], answer)
    if args[3] == '1' then
        scan_allocations(base, live, answer)
        answer[3] = scan_queue(base, args[4], tonumber(args[5]), answer)
    end
    return answer
end

-- Starts a task: number of the lead, task, attempt, class, kind, limit in microseconds, whether it may run again.
local function start(keys, args)
    local base, id = keys[1], args[2]
    if not leads(base, args[1]) then
        return not_leader()
    end
    if not settled(base, incarnation(base)) then
        return redis.error_reply('UNSETTLED backends may still have to come back')
    end
    local requested = redis.call('HGET', task_key(base, id), 'duration')
    if redis.call('ZREM', base .. 'queue', id) == 0 or not requested then
        return 0
    end
    allocate(base, { id = id, attempt = args[3], class = args[4], kind = args[5], limit = args[6], started = integer(now_ms()),
        again = args[7], wish = requested })
    offer(base, id, args[3])
    return 1
end

-- Requeues a task whose run was lost, at its old position.
local function requeue(keys, args)
    local base, id = keys[1], args[2]
    if not leads(base, args[1]) then
        return not_leader()
    end
    local alloc = allocation(base, id)
    if not alloc or alloc.attempt ~= args[3] then
        return 0
    end
    free(base, id)
    local key = task_key(base, id)
    if redis.call('EXISTS', key) == 0 then
        return 0
    end
    redis.call('DEL', key .. ':backend', key .. ':control')
    redis.call('HINCRBY', key, 'tries', 1)
    redis.call('ZADD', base .. 'queue', id, id)
    publish_to_gateway(base, id, 'waits ' .. id .. ' ' .. args[3])
    return 1
end

-- Ends a task that does not run, or not again: number of the lead, task, `deny` or `lost`, error for its client, and the lost run, if
-- nothing is to be done when that run has ended meanwhile.
local function end_task(keys, args)
    local base, id = keys[1], args[2]
    if not leads(base, args[1]) then
        return not_leader()
    end
    local alloc = allocation(base, id)
    if args[5] and not (alloc and alloc.attempt == args[5]) then
        return 0
    end
    redis.call('ZREM', base .. 'queue', id)
    free(base, id)
    if redis.call('EXISTS', task_key(base, id)) == 1 then
        redis.call('HSET', task_key(base, id), 'end', args[3] .. ' ' .. args[4])
        publish_to_gateway(base, id, 'end ' .. id .. ' ' .. args[3] .. ' ' .. args[4])
    end
    return 1
end

-- Lowers the limit of a running task: number of the lead, task, attempt, class, limit in microseconds.
local function lower(keys, args)
    local base, id = keys[1], args[2]
    if not leads(base, args[1]) then
        return not_leader()
    end
    local alloc = allocation(base, id)
    if not alloc or alloc.attempt ~= args[3] then
        return 0
    end
    alloc.class, alloc.limit = args[4], args[5]
    allocate(base, alloc)
    local key = task_key(base, id)
    redis.call('XADD', key .. ':control', 'MAXLEN', 8, '*', args[3], 'limit ' .. args[5])
    redis.call('PEXPIRE', key .. ':control', math.max(redis.call('PTTL', key), 1))
    publish_to_gateway(base, id, 'control ' .. id .. ' ' .. args[3] .. ' limit ' .. args[5])
    return 1
end

-- Halts a session for another task; its backend is free at once. A session that no backend has claimed yet ends here.
local function halt(keys, args)
    local base, id = keys[1], args[2]
    if not leads(base, args[1]) then
        return not_leader()
    end
    local alloc = allocation(base, id)
    if not alloc or alloc.attempt ~= args[3] then
        return 0
    end
    local unclaimed = is_offered(base, id)
    free(base, id)
    local key = task_key(base, id)
    if unclaimed and redis.call('EXISTS', key) == 1 then
        redis.call('HSET', key, 'end', 'lost ' .. args[4])
        publish_to_gateway(base, id, 'end ' .. id .. ' lost ' .. args[4])
    elseif redis.call('EXISTS', key) == 1 then
        redis.call('HSET', key, 'over', args[3])
        redis.call('XADD', key .. ':control', 'MAXLEN', 8, '*', args[3], 'halt ' .. args[4])
        redis.call('PEXPIRE', key .. ':control', math.max(redis.call('PTTL', key), 1))
        publish_to_gateway(base, id, 'control ' .. id .. ' ' .. args[3] .. ' halt ' .. args[4])
    end
    return 1
end

-- Publishes estimates: number of the lead, lifetime in milliseconds, then tasks and their positions in the queue as JSON.
local function publish_estimates(keys, args)
    local base = keys[1]
    if not leads(base, args[1]) then
        return not_leader()
    end
    for at = 3, #args, 2 do
        if redis.call('EXISTS', task_key(base, args[at])) == 1 then
            redis.call('SET', task_key(base, args[at]) .. ':queue.estimate', args[at + 1], 'PX', args[2])
            publish_to_gateway(base, args[at], 'queue ' .. args[at] .. ' ' .. args[at + 1])
        end
    end
    return 0
end

redis.register_function({ function_name = NAME .. '_acquire_lead', callback = acquire_lead, flags = { 'allow-oom' } })
redis.register_function({ function_name = NAME .. '_release_lead', callback = release_lead, flags = { 'allow-oom' } })
redis.register_function({ function_name = NAME .. '_collect_events', callback = collect_events, flags = { 'allow-oom' } })
redis.register_function(NAME .. '_start', start)
redis.register_function(NAME .. '_requeue', requeue)
redis.register_function(NAME .. '_end_task', end_task)
redis.register_function(NAME .. '_lower', lower)
redis.register_function(NAME .. '_halt', halt)
redis.register_function(NAME .. '_publish_estimates', publish_estimates)
