-- What all functions share. Every key begins with the same text, which has the hash tag on a cluster; docs/pool-redis.md lists them.

local function whole(number)
    return string.format('%.0f', number)
end

local function words(text)
    local parts = {}
    for part in string.gmatch(text, '%S+') do
        parts[#parts + 1] = part
    end
    return parts
end

local function now_us()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1e6 + tonumber(time[2])
end

local function now_ms()
    return math.floor(now_us() / 1000)
end

-- Which process of Redis this is; nothing where our user may not ask. It does not change while the library is loaded.
local process

local function this_process()
    if not process then
        local info = redis.pcall('INFO', 'server')
        process = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or nil
    end
    return process
end

-- What nobody can rely on when Redis forgot something. Keys of tasks and backends have leases, and say themselves what they are.
local FORGOTTEN = { 'queue', 'queue.incoming', 'queue.outcoming', 'queue.executing', 'queue.processing', 'queue.finished',
    'backend.set', 'backend.updated', 'scheduler.leader', 'scheduler.status' }

-- The name of this memory of Redis: when it began, in microseconds, and the process. It is another one after Redis lost
-- everything, and in every other process: one that begins with what was on disk, or was a replica, may not know the last things, and
-- half a memory is worse than none. Then gateways and backends bring back what they know. Counters begin with the time,
-- so that no number is issued twice however often that happens.
local function life(base)
    local found = redis.call('GET', base .. 'pool.life')
    local here = this_process()
    if found and (not here or string.sub(found, -#here) == here) then
        return found
    end
    for _, name in ipairs(FORGOTTEN) do
        redis.call('UNLINK', base .. name)
    end
    local now = now_us()
    found = whole(now) .. '-' .. (here or '')
    redis.call('SET', base .. 'pool.life', found)
    for _, name in ipairs({ 'task.counter', 'backend.counter', 'scheduler.counter' }) do
        if tonumber(redis.call('GET', base .. name) or 0) < now then
            redis.call('SET', base .. name, whole(now))
        end
    end
    return found
end

local function age_ms(memory)
    return math.floor((now_us() - tonumber(string.match(memory, '^%d+'))) / 1000)
end

-- Until a memory is settled nothing starts, and backends may bring back what they run; afterwards it is the other way round. So no
-- task is given a place that somebody has who was not heard yet.
local function settled(base, memory)
    return redis.call('GET', base .. 'pool.settled') == memory
end

-- Somebody knows an earlier memory, so there was one, and others may still have to come back.
local function witness(base, known, memory)
    if known ~= '' and known ~= memory then
        redis.call('SET', base .. 'pool.witness', memory)
    end
end

local function task_key(base, id)
    return base .. 'task:' .. id
end

local function forget_task(base, id)
    local key = task_key(base, id)
    redis.call('DEL', key, key .. ':files', key .. ':backend', key .. ':queue.estimate', key .. ':control')
end

-- One who holds a backend, or is about to: `queue.executing`.
local FIELDS = { 'attempt', 'class', 'kind', 'limit', 'started', 'again', 'wish' }

local function allocation(base, id)
    local text = redis.call('HGET', base .. 'queue.executing', id)
    if not text then
        return nil
    end
    local parts, found = words(text), { id = id }
    for at, name in ipairs(FIELDS) do
        found[name] = parts[at]
    end
    return found
end

local function allocate(base, alloc)
    local parts = {}
    for at, name in ipairs(FIELDS) do
        parts[at] = alloc[name]
    end
    redis.call('HSET', base .. 'queue.executing', alloc.id, table.concat(parts, ' '))
end

local function free(base, id)
    redis.call('HDEL', base .. 'queue.processing', id)
    return redis.call('HDEL', base .. 'queue.executing', id) == 1
end

-- Hints: who misses one finds the same by looking.
local function wake_scheduler(base)
    redis.call('PUBLISH', base .. 'scheduler.wake', '')
end

local function tell_gateway(base, id, text)
    local gateway = redis.call('HGET', task_key(base, id), 'gateway')
    if gateway then
        redis.call('PUBLISH', base .. 'gateway:' .. gateway, text)
    end
end

local function finished(base, text)
    redis.call('RPUSH', base .. 'queue.finished', text)
    wake_scheduler(base)
end

local function offer(base, id, attempt)
    redis.call('XADD', base .. 'queue.outcoming', '*', 'task', id, 'attempt', attempt)
    redis.call('PUBLISH', base .. 'backend.wake', '')
end
