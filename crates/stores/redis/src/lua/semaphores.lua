-- The commands of a semaphore. One call runs any number of them, one after the other.

local semaphores = {}

local STANDING = '<BBdddddd'

local function standing_of(entry)
    return struct.pack(STANDING, entry.status, entry.declined, entry.priority, entry.enqueued, entry.until_when, entry.grant, entry.granted,
        entry.lease_until)
end

local function standings(s, tasks)
    local found = {}
    for _, task in ipairs(tasks) do
        local entry = sem.find(s, task)
        if entry then
            found[#found + 1] = task .. standing_of(entry)
        end
    end
    return '\0' .. table.concat(found)
end

local function info_of(s)
    return '\0' .. s.raw .. struct.pack('<dddddd', sem.size(s, ':w'), s.cooling, sem.count_granted(s), sem.count_asked(s),
        redis.call('HLEN', s.base .. ':e'), outbox.next_moment(s))
end

-- The configuration after a change; `given` has a bit for each option that changes. Refused with `active` where try_release is more.
local function changed(raw, given, header, place)
    local r = sem.read_config(raw)
    local active, try_release, margin, min_hold, cool_down, max_revoking, revoke_grace, lease, ack_timeout, flags =
        struct.unpack('<dddddddddB', header, place)
    r.active = has(given, 1) and active or r.active
    if has(given, 2) then
        if try_release > r.active then
            return nil, r.active
        end
        r.try_release = try_release
    end
    r.margin = has(given, 4) and margin or r.margin
    r.min_hold = has(given, 8) and min_hold or r.min_hold
    r.cool_down = has(given, 16) and cool_down or r.cool_down
    if has(given, 32) then
        r.max_revoking = max_revoking
    end
    r.revoke_grace = has(given, 64) and revoke_grace or r.revoke_grace
    if has(given, 128) then
        r.lease = lease
    end
    if has(given, 256) then
        r.ack_timeout = ack_timeout
    end
    if has(given, 512) then
        r.force = has(flags, sem.FORCE)
    end
    if has(given, 1024) then
        r.shed = has(flags, sem.SHED)
    end
    if has(given, 2048) then
        r.drop_expired = has(flags, sem.DROP_EXPIRED)
    end
    return sem.write_config(r)
end

-- The header: whether an existing one stays as it is, the number of a new one (or 0: none yet), the change, the first event and the grant
-- before the first of a new one, and its configuration before the change.
function semaphores.configure(s, header, call, key)
    local only_new, number, given = struct.unpack('<BI4I2', header, 2)
    local raw, active = changed(s and s.raw or string.sub(header, 98), given, header, 9)
    if not raw then
        return '\2' .. struct.pack('<I4', active)
    end
    if not s then
        local remains = sem.remains(call, key)
        if remains then
            -- First the registry must have the numbers of the one that was dropped.
            return '\7' .. remains
        elseif number == 0 then
            return '\3'
        end
        local event, grant = struct.unpack('<dd', header, 82)
        s = sem.create(call, key, number, raw, event, grant)
    elseif only_new == 0 then
        s.raw, s.config = raw, sem.read_config(raw)
        redis.call('SET', s.base .. ':o', raw)
        rules.admit_waiters(s)
    end
    return info_of(s)
end

function semaphores.enqueue(s, header)
    local size, tasks = struct.unpack('<I4', header, 2), {}
    for item = 1, size do
        local task, priority = struct.unpack('<c8d', header, 6 + (item - 1) * 16)
        tasks[item] = task
        rules.enqueue(s, task, priority, '')
    end
    rules.admit_waiters(s)
    return standings(s, tasks)
end

local OUTCOMES = { [0] = '\0', '\1', '\2', '\3' }

function semaphores.finish(s, header)
    local size, outcomes = struct.unpack('<I4', header, 2), {}
    for item = 1, size do
        local task, grant, verb, span = struct.unpack('<c8dBd', header, 6 + (item - 1) * 25)
        -- A grant of -1 is the current one.
        outcomes[item] = OUTCOMES[rules.finish_grant(s, task, grant ~= -1 and grant or nil, verb, span)]
    end
    rules.admit_waiters(s)
    return '\0' .. table.concat(outcomes)
end

function semaphores.lookup(s, header)
    return standings(s, read_ids(header, 2))
end

-- The name of the tube of a task and its id there, or no name and the task.
local function tube_and_id(s, task)
    if #task == 8 then
        return '', task
    end
    local entry = sem.find(s, task)
    local tube = entry and gates.tube(s.call, entry.tag)
    return tube and tube.options.name or '', string.sub(task, 6)
end

-- Lua allows two hundred local names in one function: these are not visible behind the block.
do
    local HOLDERS = 0

    -- Adds the best of an order behind this position, at most so many.
    local function add_behind(s, found, order, after, count)
        local first = after and sem.before(s, order, after.priority, after.behind) or 0
        local last, removed = first + count - 1, 0
        repeat
            removed = 0
            for _, member in ipairs(redis.call('ZRANGE', s.base .. order, first, last)) do
                local entry = sem.member(s, order, member)
                if entry then
                    found[#found + 1], first = entry, first + 1
                else
                    removed = removed + redis.call('ZREM', s.base .. order, member)
                end
            end
            -- A page that is not full means the end of the list.
        until removed == 0
    end

    -- The header: which part, at most how many, and where the page before ended (a negative number of arrival: there was none). Answers
    -- each with its number of arrival and the name of its tube.
    function semaphores.members(s, header)
        local part, count, priority, seq = struct.unpack('<Bddd', header, 2)
        local after = seq >= 0 and { priority = priority, behind = struct.pack('>I8', seq + 1) }
        local found, shown = {}, {}
        if part == HOLDERS then
            sem.repair_declined(s)
        end
        for _, order in ipairs(count == 0 and {} or part == HOLDERS and { ':a', ':k', ':r' } or { ':w' }) do
            add_behind(s, found, order, after, count)
        end
        for at, entry in ipairs(rules.best_entries(found, count)) do
            local name, task = tube_and_id(s, entry.task)
            shown[at] = task .. standing_of(entry) .. struct.pack('<dI2c0', entry.seq, #name, name)
        end
        return '\0' .. table.concat(shown)
    end

    -- The name of a tube that uses this semaphore. In a cluster there is none.
    local function tube_using(s)
        local base = '{' .. s.call.prefix .. '}'
        for _, name in ipairs(s.call.single and redis.call('HKEYS', base .. ':tubes') or {}) do
            local tag = redis.call('HGET', base .. ':homes', name) or name
            local raw = redis.call('GET', '{' .. s.call.prefix .. ':' .. tag .. '}:o')
            if raw and options_of(raw).semaphore == s.key then
                return options_of(raw).name
            end
        end
    end

    -- Removes a semaphore with all entries. Refused while a tube uses it: its tasks would never be ready again.
    function semaphores.drop(s, header)
        local tube = tube_using(s)
        if tube then
            return '\6' .. tube
        elseif struct.unpack('<B', header, 2) == 0 and redis.call('HLEN', s.base .. ':p') > 0 then
            return '\5'
        end
        return '\0' .. sem.drop(s)
    end
end

function semaphores.info(s)
    return info_of(s)
end

local function deliver_events(s, numbers)
    local events = {}
    for _, number in ipairs(numbers) do
        local event = outbox.deliver(s, number)
        if event then
            local name, task = tube_and_id(s, event.task)
            events[#events + 1] = number .. struct.pack('<I4Bdc8I2c0', event.attempts, event.kind, event.grant, task, #name, name)
        end
    end
    return '\0' .. table.concat(events)
end

-- Delivers what is due, at most so many.
function semaphores.fetch(s, header)
    return deliver_events(s, outbox.due(s, struct.unpack('<d', header, 2)))
end

-- Shows what is due, at most so many, without delivering it.
function semaphores.peek(s, header)
    local due = {}
    for place, number in ipairs(outbox.due(s, struct.unpack('<d', header, 2))) do
        local event = outbox.get(s, number)
        due[place] = struct.pack('<dd', event.next_at, event.stamp) .. number
    end
    return '\0' .. table.concat(due)
end

-- Delivers these.
function semaphores.deliver(s, header)
    return deliver_events(s, read_ids(header, 2))
end

-- The header: the number of the semaphore, because the key may belong to another one now; then the events.
function semaphores.acknowledge(s, header)
    if struct.unpack('<I4', header, 2) ~= s.number then
        return '\3'
    end
    local arrived = 0
    for _, number in ipairs(read_ids(header, 6)) do
        local event = outbox.get(s, number)
        if event then
            arrived = arrived + 1
            rules.acknowledge(s, event)
        end
    end
    return '\0' .. struct.pack('<d', arrived)
end

-- Applies due deadlines. Answers whether there were any.
function semaphores.tick(s)
    if sem.next_moment(s) > s.now then
        return '\0' .. struct.pack('<d', 0)
    end
    for _, task in ipairs(redis.call('ZRANGEBYSCORE', s.base .. ':d', '-inf', s.now, 'LIMIT', 0, {{BATCH_TASKS_MAX}})) do
        rules.apply_deadline(s, sem.find(s, task))
    end
    rules.admit_waiters(s)
    return '\0' .. struct.pack('<d', 1)
end

local SEMAPHORE_VERBS = { E = semaphores.enqueue, F = semaphores.finish, L = semaphores.lookup, N = semaphores.info, V = semaphores.fetch,
    P = semaphores.peek, H = semaphores.deliver, A = semaphores.acknowledge, I = semaphores.tick, M = semaphores.members,
    D = semaphores.drop }

-- Whether it exists, this clock, the next moment, when the next event may be delivered, whether there are new ones, its number.
local function semaphore_head(s, now)
    if not s then
        return struct.pack('<BdddBI4', 0, now, NEVER, NEVER, 0, 0)
    end
    return struct.pack('<BdddBI4', 1, now, sem.next_moment(s), outbox.next_moment(s), s.notify and 1 or 0, s.number)
end

-- The first arguments are those of a tube's call, but instead of the name whether one node has all keys.
local function run_semaphore_call(keys, args)
    local call = new_call(keys[1], args, args[5] == '1')
    local key = string.sub(keys[1], #call.prefix + 4, -2)
    while call.next <= #args do
        local header = args[call.next]
        local verb = string.sub(header, 1, 1)
        call.next = call.next + 1
        local s = sem.open(call, key)
        if verb == 'C' then
            call:answer(semaphores.configure(s, header, call, key))
        elseif verb == 'X' then
            sem.forget(call, key, string.sub(header, 2))
            call:answer('\0')
        elseif verb == 'D' and not s then
            -- An earlier drop may have been interrupted before the registry had its numbers.
            call:answer('\1' .. (sem.remains(call, key) or ''))
        else
            call:answer(s and SEMAPHORE_VERBS[verb](s, header) or '\1')
        end
        s = call.semaphores[key]
        if s then
            gates.follow(s)
        end
    end
    end_call(call, nil, key)
    call.answers[1] = semaphore_head(call.semaphores[key], call.now)
    return call.answers
end

redis.register_function(NAME .. '_semaphore', run_semaphore_call)
redis.register_function({ function_name = NAME .. '_semaphore_oom', callback = run_semaphore_call, flags = { 'allow-oom' } })
