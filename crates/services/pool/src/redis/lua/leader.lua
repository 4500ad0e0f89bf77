-- What schedulers ask. Each call but the first carries the number under which its scheduler leads, and changes nothing when that
-- is not the number of the lock: one that was paused past its lease comes too late for everything.

local function leads(base, number)
    -- After a loss nobody leads.
    life(base)
    local lock = redis.call('GET', base .. 'scheduler.leader')
    return lock and words(lock)[1] == number
end

local function refused()
    return redis.error_reply('DEPOSED another scheduler leads, or nobody does')
end

-- Takes the lead, or keeps it: who asks, lease in milliseconds, how the pool is, for those who look, the memory of Redis that this
-- scheduler knows, and the number under which it leads, or nothing where it begins anew. Then it gets a new one, although the lock may
-- still be its own: runs are counted from one under each number, and no run may have the name of an earlier one. Answers the number
-- (or 0), this clock in microseconds, which memory this is, and who leads.
local function lead(keys, args)
    local base, who, lease = keys[1], args[1], args[2]
    local memory = life(base)
    witness(base, args[4], memory)
    local clock = whole(now_us())
    local lock = redis.call('GET', base .. 'scheduler.leader')
    local own = lock and words(lock)[2] == who
    local number = '0'
    if args[5] == '' and (own or not lock) then
        number = whole(redis.call('INCR', base .. 'scheduler.counter'))
        lock = number .. ' ' .. who
        redis.call('SET', base .. 'scheduler.leader', lock, 'PX', lease)
    elseif own and words(lock)[1] == args[5] then
        number = args[5]
        redis.call('PEXPIRE', base .. 'scheduler.leader', lease)
    end
    if number ~= '0' and args[3] ~= '' then
        redis.call('SET', base .. 'scheduler.status', args[3], 'PX', tonumber(lease) * 2)
    end
    return { number, clock, memory, lock or '' }
end

-- Gives the lead up.
local function resign(keys, args)
    if leads(keys[1], args[1]) then
        redis.call('DEL', keys[1] .. 'scheduler.leader')
        wake_scheduler(keys[1])
    end
    return 0
end

local function newcomer(base, id)
    local has = redis.call('HMGET', task_key(base, id), 'ask', 'duration', 'arrived', 'tries')
    if not has[1] then
        return nil
    end
    return id .. ' ' .. table.concat(has, ' ')
end

local function take_incoming(base, most, answer)
    local ids = redis.call('LPOP', base .. 'queue.incoming', most) or {}
    for _, id in ipairs(ids) do
        local text = newcomer(base, id)
        if text and redis.call('HEXISTS', base .. 'queue.executing', id) == 1 then
            answer[#answer + 1] = 'wish ' .. text
        elseif text and redis.call('HEXISTS', task_key(base, id), 'end') == 0
            and redis.call('HEXISTS', task_key(base, id), 'over') == 0 then
            local new = redis.call('ZADD', base .. 'queue', 'NX', id, id) == 1
            answer[#answer + 1] = (new and 'arrive ' or 'wish ') .. text
        end
    end
end

local function runs(base, id, answer)
    local tries = redis.call('HGET', task_key(base, id), 'tries') or '0'
    answer[#answer + 1] = 'runs ' .. id .. ' ' .. redis.call('HGET', base .. 'queue.executing', id) .. ' ' .. tries
    -- What its client wanted since it began may be known to a scheduler that is gone.
    local wanted = redis.call('HGET', task_key(base, id), 'duration')
    if wanted and tonumber(wanted) < tonumber(allocation(base, id).wish) then
        answer[#answer + 1] = 'wish ' .. newcomer(base, id)
    end
end

local function lost(base, alloc, answer)
    local seen = redis.call('HGET', task_key(base, alloc.id), 'seen')
    if seen then
        -- One that has just begun to lead has to know it before it is lost.
        runs(base, alloc.id, answer)
        answer[#answer + 1] = 'lost ' .. alloc.id .. ' ' .. alloc.attempt .. ' ' .. seen
    elseif free(base, alloc.id) then
        answer[#answer + 1] = 'gone ' .. alloc.id .. ' ' .. alloc.attempt
    end
end

local function take_finished(base, most, answer)
    for _, text in ipairs(redis.call('LPOP', base .. 'queue.finished', most) or {}) do
        local parts = words(text)
        local alloc = parts[1] == 'lost' and allocation(base, parts[2])
        if parts[1] ~= 'lost' then
            answer[#answer + 1] = text
        elseif alloc and alloc.attempt == parts[3] then
            lost(base, alloc, answer)
        end
    end
end

-- Backends whose lease is over leave.
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

-- How long an offer may lie before it is made once more, in milliseconds. Free backends look for offers each second.
local OFFER_MS = 5000

-- Whether no backend has taken it yet.
local function is_offered(base, id)
    return redis.call('HEXISTS', base .. 'queue.processing', id) == 0
        and redis.call('EXISTS', task_key(base, id) .. ':backend') == 0
end

-- What is offered waits again as if it had never been. Where its client is gone it is gone too, and a session does not wait.
local function take_back(base, alloc, answer)
    if alloc.kind == 'interactive' or redis.call('EXISTS', task_key(base, alloc.id)) == 0 then
        return lost(base, alloc, answer)
    end
    free(base, alloc.id)
    redis.call('ZADD', base .. 'queue', alloc.id, alloc.id)
    answer[#answer + 1] = 'unclaimed ' .. alloc.id .. ' ' .. alloc.attempt
end

-- Offers that have no backend to take them, because one is gone, are taken back, the last one first. Else they would wait for the
-- end of a session, which has to end for those who wait.
local function take_back_offers(base, count, live, answer)
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
        take_back(base, allocation(base, offered[at]), answer)
    end
end

-- What no message tells: whose backend is gone, whose gateway is gone, and who is here at all.
local function sweep_allocations(base, live, answer)
    local all = redis.call('HKEYS', base .. 'queue.executing')
    for _, id in ipairs(all) do
        local alloc = allocation(base, id)
        local backend = redis.call('HGET', base .. 'queue.processing', id)
        local address = redis.call('LINDEX', task_key(base, id) .. ':backend', -1)
        -- One that was claimed and has no backend any more was lost too, whoever was told so.
        local left = not backend and address and words(address)[1] == alloc.attempt
        if backend and not live[backend] or left then
            lost(base, alloc, answer)
        elseif not backend and redis.call('EXISTS', task_key(base, id)) == 0 then
            free(base, id)
            answer[#answer + 1] = 'gone ' .. id .. ' ' .. alloc.attempt
        elseif is_offered(base, id) and now_ms() - tonumber(alloc.started) > OFFER_MS then
            take_back(base, alloc, answer)
        else
            runs(base, id, answer)
        end
    end
    answer[#answer + 1] = 'swept'
end

local function sweep_queue(base, from, count, answer)
    local page = redis.call('ZRANGEBYSCORE', base .. 'queue', '(' .. from, '+inf', 'LIMIT', 0, count)
    for _, id in ipairs(page) do
        local text = newcomer(base, id)
        if text then
            answer[#answer + 1] = 'waits ' .. text
        else
            redis.call('ZREM', base .. 'queue', id)
            answer[#answer + 1] = 'left ' .. id
        end
    end
    return #page == count and page[count] or '0'
end

-- How many milliseconds it takes until this memory is settled: as long as a backend may be silent where somebody remembers another
-- one, else only as long as it takes until all have said something. It is settled in the call that names all who hold a backend.
local function settling(base, silent, word, sweeps)
    local memory = life(base)
    if settled(base, memory) then
        return 0
    end
    local lasts = redis.call('GET', base .. 'pool.witness') == memory and silent or word
    local left = tonumber(lasts) - age_ms(memory)
    if left <= 0 and sweeps then
        redis.call('SET', base .. 'pool.settled', memory)
        return 0
    end
    return math.max(left, 1)
end

-- Everything that happened: number, most of each sort, whether to look at what no message tells, the task after which to
-- look at those who wait and how many of them, how long a backend may be silent, and how long it takes at most until each has said
-- something, in milliseconds. Answers how many backends live, how long nothing may start, and the task to go on after.
local function gather(keys, args)
    local base = keys[1]
    if not leads(base, args[1]) then
        return refused()
    end
    local answer = { 0, settling(base, args[6], args[7], args[3] == '1'), '0' }
    local count, live = live_backends(base)
    answer[1] = count
    take_finished(base, args[2], answer)
    take_back_offers(base, count, live, answer)
    take_incoming(base, args[2], answer)
    if args[3] == '1' then
        sweep_allocations(base, live, answer)
        answer[3] = sweep_queue(base, args[4], tonumber(args[5]), answer)
    end
    return answer
end

-- A task starts: number, task, attempt, class, kind, limit in microseconds, whether it may run again.
local function start(keys, args)
    local base, id = keys[1], args[2]
    if not leads(base, args[1]) then
        return refused()
    end
    if not settled(base, life(base)) then
        return redis.error_reply('UNSETTLED backends may still have to come back')
    end
    local wish = redis.call('HGET', task_key(base, id), 'duration')
    if redis.call('ZREM', base .. 'queue', id) == 0 or not wish then
        return 0
    end
    allocate(base, { id = id, attempt = args[3], class = args[4], kind = args[5], limit = args[6], started = whole(now_ms()),
        again = args[7], wish = wish })
    offer(base, id, args[3])
    return 1
end

-- A task whose backend is gone waits in its place again.
local function put_back(keys, args)
    local base, id = keys[1], args[2]
    if not leads(base, args[1]) then
        return refused()
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
    tell_gateway(base, id, 'waits ' .. id .. ' ' .. args[3])
    return 1
end

-- A task does not run, or not again: number, task, `deny` or `lost`, words for its client, and the run that was lost, if it is one
-- that has not ended by itself meanwhile.
local function give_up(keys, args)
    local base, id = keys[1], args[2]
    if not leads(base, args[1]) then
        return refused()
    end
    local alloc = allocation(base, id)
    if args[5] and not (alloc and alloc.attempt == args[5]) then
        return 0
    end
    redis.call('ZREM', base .. 'queue', id)
    free(base, id)
    if redis.call('EXISTS', task_key(base, id)) == 1 then
        redis.call('HSET', task_key(base, id), 'end', args[3] .. ' ' .. args[4])
        tell_gateway(base, id, 'end ' .. id .. ' ' .. args[3] .. ' ' .. args[4])
    end
    return 1
end

-- A running task gets less time: number, task, attempt, class, limit in microseconds.
local function lower(keys, args)
    local base, id = keys[1], args[2]
    if not leads(base, args[1]) then
        return refused()
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
    tell_gateway(base, id, 'control ' .. id .. ' ' .. args[3] .. ' limit ' .. args[5])
    return 1
end

-- A session ends for another; its backend is free at once.
local function halt(keys, args)
    local base, id = keys[1], args[2]
    if not leads(base, args[1]) then
        return refused()
    end
    local alloc = allocation(base, id)
    if not alloc or alloc.attempt ~= args[3] then
        return 0
    end
    free(base, id)
    local key = task_key(base, id)
    if redis.call('EXISTS', key) == 1 then
        redis.call('HSET', key, 'over', args[3])
        redis.call('XADD', key .. ':control', 'MAXLEN', 8, '*', args[3], 'halt ' .. args[4])
        redis.call('PEXPIRE', key .. ':control', math.max(redis.call('PTTL', key), 1))
        tell_gateway(base, id, 'control ' .. id .. ' ' .. args[3] .. ' halt ' .. args[4])
    end
    return 1
end

-- Those who wait are told how long: number, lifetime in milliseconds, then tasks and words.
local function tell(keys, args)
    local base = keys[1]
    if not leads(base, args[1]) then
        return refused()
    end
    for at = 3, #args, 2 do
        if redis.call('EXISTS', task_key(base, args[at])) == 1 then
            redis.call('SET', task_key(base, args[at]) .. ':queue.estimate', args[at + 1], 'PX', args[2])
            tell_gateway(base, args[at], 'queue ' .. args[at] .. ' ' .. args[at + 1])
        end
    end
    return 0
end

redis.register_function({ function_name = NAME .. '_lead', callback = lead, flags = { 'allow-oom' } })
redis.register_function({ function_name = NAME .. '_resign', callback = resign, flags = { 'allow-oom' } })
redis.register_function({ function_name = NAME .. '_gather', callback = gather, flags = { 'allow-oom' } })
redis.register_function(NAME .. '_start', start)
redis.register_function(NAME .. '_put_back', put_back)
redis.register_function(NAME .. '_give_up', give_up)
redis.register_function(NAME .. '_lower', lower)
redis.register_function(NAME .. '_halt', halt)
redis.register_function(NAME .. '_tell', tell)
