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

local function now_ms()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- A number that is another one after Redis lost everything: then gateways and backends bring back what they know. Counters
-- begin with the time, so that no number is issued twice however often that happens.
local function life(base)
    local found = redis.call('GET', base .. 'pool.life')
    if not found then
        found = whole(now_ms())
        redis.call('SET', base .. 'pool.life', found)
        for _, name in ipairs({ 'task.counter', 'backend.counter', 'scheduler.counter' }) do
            redis.call('SET', base .. name, found, 'NX')
        end
    end
    return found
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
