-- Shared helpers. Every key begins with the same prefix, which contains the hash tag on a cluster; docs/pool.md lists the keys.

local function integer(number)
    return string.format('%.0f', number)
end

local function split(text)
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

-- The run id of this Redis process; nil if the user may not call INFO. It does not change while the library is loaded.
local process

local function this_process()
    if not process then
        local info = redis.pcall('INFO', 'server')
        process = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or nil
    end
    return process
end

-- Keys that are unreliable after a data loss. Keys of tasks and backends have leases and are self-describing.
local VOLATILE_KEYS = { 'queue', 'queue.incoming', 'queue.outcoming', 'queue.executing', 'queue.processing', 'queue.finished',
    'backend.set', 'backend.updated', 'scheduler.leader', 'scheduler.status' }

-- The incarnation of Redis: when it began, in microseconds, and the run id of the process. It changes when Redis loses its data and with
-- every process: a process that loads data from disk, or was a replica, may miss the latest changes, and incomplete data is worse than
-- none. Then gateways and backends report what they know. Counters begin with the time, so that no number is issued twice however often
-- that happens.
local function incarnation(base)
    local found = redis.call('GET', base .. 'pool.life')
    local here = this_process()
    if found and (not here or string.sub(found, -#here) == here) then
        return found
    end
    for _, name in ipairs(VOLATILE_KEYS) do
        redis.call('UNLINK', base .. name)
    end
    local now = now_us()
    found = integer(now) .. '-' .. (here or '')
    redis.call('SET', base .. 'pool.life', found)
    for _, name in ipairs({ 'task.counter', 'backend.counter', 'scheduler.counter' }) do
        if tonumber(redis.call('GET', base .. name) or 0) < now then
            redis.call('SET', base .. name, integer(now))
        end
    end
    return found
end

local function age_ms(current)
    return math.floor((now_us() - tonumber(string.match(current, '^%d+'))) / 1000)
end

-- Until an incarnation is settled nothing starts, and backends may report their runs; afterwards it is the other way round. So no
-- task is given a slot that belongs to a run that was not reported yet.
local function settled(base, current)
    return redis.call('GET', base .. 'pool.settled') == current
end

-- A part knows an earlier incarnation, so there was one, and others may still have to report.
local function note_earlier(base, known, current)
    if known ~= '' and known ~= current then
        redis.call('SET', base .. 'pool.witness', current)
    end
end

local function task_key(base, id)
    return base .. 'task:' .. id
end

local function delete_task(base, id)
    local key = task_key(base, id)
    redis.call('DEL', key, key .. ':files', key .. ':backend', key .. ':queue.estimate', key .. ':control')
end

-- A task that holds a backend, or is offered to one: `queue.executing`.
local FIELDS = { 'attempt', 'class', 'kind', 'limit', 'started', 'again', 'wish' }

local function allocation(base, id)
    local text = redis.call('HGET', base .. 'queue.executing', id)
    if not text then
        return nil
    end
    local parts, found = split(text), { id = id }
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

-- Messages are hints: a part that misses one finds the same state by polling.
local function wake_scheduler(base)
    redis.call('PUBLISH', base .. 'scheduler.wake', '')
end

local function publish_to_gateway(base, id, text)
    local gateway = redis.call('HGET', task_key(base, id), 'gateway')
    if gateway then
        redis.call('PUBLISH', base .. 'gateway:' .. gateway, text)
    end
end

local function push_finished(base, text)
    redis.call('RPUSH', base .. 'queue.finished', text)
    wake_scheduler(base)
end

local function offer(base, id, attempt)
    redis.call('XADD', base .. 'queue.outcoming', '*', 'task', id, 'attempt', attempt)
    redis.call('PUBLISH', base .. 'backend.wake', '')
end
