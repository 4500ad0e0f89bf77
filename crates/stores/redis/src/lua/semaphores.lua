-- What can be asked of a semaphore. One call asks it for any number of things, one after the other.

local semaphores = {}

local STANDING = '<BBdddddd'

local function standings(s, tasks)
    local found = {}
    for _, task in ipairs(tasks) do
        local p = sem.place(s, task)
        if p then
            found[#found + 1] = task .. struct.pack(STANDING, p.status, p.pinned, p.priority, p.enqueued, p.until_when, p.grant,
                p.granted, p.lease_until)
        end
    end
    return '\0' .. table.concat(found)
end

local function info_of(s)
    return '\0' .. s.raw .. struct.pack('<dddddd', sem.count(s, ':w'), s.standing_back, sem.acquired(s), sem.count(s, ':r'),
        redis.call('HLEN', s.base .. ':e'), outbox.next_moment(s))
end

-- The rules after a change; which of them are given, as bits in their order. Refused with how many may be active where the tail is
-- longer than that.
local function changed(raw, given, header, place)
    local r = sem.read_rules(raw)
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
    r.max_revoking = has(given, 32) and max_revoking or r.max_revoking
    r.revoke_grace = has(given, 64) and revoke_grace or r.revoke_grace
    r.lease = has(given, 128) and lease or r.lease
    r.ack_timeout = has(given, 256) and ack_timeout or r.ack_timeout
    if has(given, 512) then
        r.force = has(flags, sem.FORCE)
    end
    if has(given, 1024) then
        r.shed = has(flags, sem.SHED)
    end
    if has(given, 2048) then
        r.drop_expired = has(flags, sem.DROP_EXPIRED)
    end
    return sem.write_rules(r)
end

-- Whether to leave one that is there as it is, a number for a new one (or none yet), the change, with which event and after which grant
-- a new one begins, and how.
function semaphores.configure(s, header, call, key)
    local only_new, number, given = struct.unpack('<BI4I2', header, 2)
    local raw, active = changed(s and s.raw or string.sub(header, 98), given, header, 9)
    if not raw then
        return '\2' .. struct.pack('<I4', active)
    end
    if not s then
        local remains = sem.remains(call, key)
        if remains then
            -- First the registry must know that the one before was dropped.
            return '\7' .. remains
        elseif number == 0 then
            return '\3'
        end
        local event, grant = struct.unpack('<dd', header, 82)
        s = sem.create(call, key, number, raw, event, grant)
    elseif only_new == 0 then
        s.raw, s.rules = raw, sem.read_rules(raw)
        redis.call('SET', s.base .. ':o', raw)
        settle.all(s)
    end
    return info_of(s)
end

function semaphores.enqueue(s, header)
    local size, tasks = struct.unpack('<I4', header, 2), {}
    for item = 1, size do
        local task, priority = struct.unpack('<c8d', header, 6 + (item - 1) * 16)
        tasks[item] = task
        sem.stand_in_line(s, task, priority, '')
    end
    settle.all(s)
    return standings(s, tasks)
end

local RELEASES, YIELDS, DECLINES, EXTENDS = 0, 1, 2, 3
local NOT_ASKED_ITEM = '\3'

local finish_held = {
    [RELEASES] = function(s, task, place)
        outbox.forget(s, task, place.grant)
        sem.remove(s, task, place)
    end,
    [YIELDS] = function(s, task, place)
        outbox.forget(s, task, place.grant)
        sem.stand_back(s, task, place, s.rules.cool_down)
    end,
    [DECLINES] = function(s, task, place)
        outbox.forget(s, task, place.grant)
        place.status, place.pinned, place.revoke_at, place.ack_by = HOLDS, 1, NEVER, NEVER
        sem.write(s, task, place)
    end,
    [EXTENDS] = function(s, task, place, span)
        -- Who prolongs a grant knows of it.
        local acquired = outbox.find(s, task, place.grant, outbox.ACQUIRED)
        if acquired then
            outbox.remove(s, acquired)
            s.news = s.news or outbox.of_grant(s, task, place.grant) ~= ''
        end
        place.lease_until, place.ack_by = later(s.now, span), NEVER
        sem.write(s, task, place)
    end,
}

-- What became of one item. A grant of less than nothing is the current one.
local function finish_grant(s, task, grant, verb, span)
    local place = sem.place(s, task)
    if not place then
        return MISSING_ITEM
    end
    local held = place.status >= HOLDS
    if grant ~= -1 and not (held and grant == place.grant) then
        return STALE_ITEM
    end
    if held and verb == DECLINES and place.status == HOLDS then
        -- Nothing to decline. Twice is the same as once.
        return place.pinned == 1 and DONE_ITEM or NOT_ASKED_ITEM
    elseif held then
        finish_held[verb](s, task, place, span)
        return DONE_ITEM
    elseif verb == RELEASES then
        sem.remove(s, task, place)
        return DONE_ITEM
    end
    -- One that yields has done so already; there is nothing to keep or prolong.
    return verb == YIELDS and DONE_ITEM or STALE_ITEM
end

function semaphores.finish(s, header)
    local size, outcomes = struct.unpack('<I4', header, 2), {}
    for item = 1, size do
        local task, grant, verb, span = struct.unpack('<c8dBd', header, 6 + (item - 1) * 25)
        outcomes[item] = finish_grant(s, task, grant, verb, span)
    end
    settle.all(s)
    return '\0' .. table.concat(outcomes)
end

function semaphores.look(s, header)
    return standings(s, read_ids(header, 2))
end

-- The name of the tube of a task and its id there, or no name and the task.
local function told_task(s, task)
    if #task == 8 then
        return '', task
    end
    local place = sem.place(s, task)
    local tube = place and gates.tube(s.call, place.home)
    return tube and tube.options.name or '', string.sub(task, 6)
end

-- Lua allows two hundred names in one place: these are not seen behind it.
do
    local HOLDERS = 0

    -- The best of an order behind this place, at most so many, as pairs of a place and its task.
    local function add_behind(s, found, order, after, count)
        local first = after and sem.before(s, order, after.priority, after.behind) or 0
        local last, removed = first + count - 1, 0
        repeat
            removed = 0
            for _, member in ipairs(redis.call('ZRANGE', s.base .. order, first, last)) do
                local task, place = sem.member(s, order, member)
                if place then
                    found[#found + 1], first = { place, task }, first + 1
                else
                    removed = removed + redis.call('ZREM', s.base .. order, member)
                end
            end
            -- A page that is not full would be taken for the last one.
        until removed == 0
    end

    local function is_better(one, other)
        local a, b = one[1], other[1]
        return a.priority > b.priority or a.priority == b.priority and a.seq < b.seq
    end

    -- Which part, at most how many, and where the page before ended (a number of arrival below zero: there was none). Each with its
    -- number of arrival and the name of its tube.
    function semaphores.members(s, header)
        local part, count, priority, seq = struct.unpack('<Bddd', header, 2)
        local after = seq >= 0 and { priority = priority, behind = struct.pack('>I8', seq + 1) }
        local found, shown = {}, {}
        if part == HOLDERS then
            sem.tidy_declined(s)
        end
        for _, order in ipairs(count == 0 and {} or part == HOLDERS and { ':a', ':k', ':r' } or { ':w' }) do
            add_behind(s, found, order, after, count)
        end
        table.sort(found, is_better)
        for at = 1, math.min(#found, count) do
            local p, name, task = found[at][1], told_task(s, found[at][2])
            shown[at] = task .. struct.pack(STANDING, p.status, p.pinned, p.priority, p.enqueued, p.until_when, p.grant, p.granted,
                p.lease_until) .. struct.pack('<dI2c0', p.seq, #name, name)
        end
        return '\0' .. table.concat(shown)
    end

    -- The name of a tube behind this semaphore. In a cluster there is none.
    local function tube_behind(s)
        local base = '{' .. s.call.prefix .. '}'
        for _, name in ipairs(s.call.single and redis.call('HKEYS', base .. ':tubes') or {}) do
            local home = redis.call('HGET', base .. ':homes', name) or name
            local raw = redis.call('GET', '{' .. s.call.prefix .. ':' .. home .. '}:o')
            if raw and options_of(raw).semaphore == s.key then
                return options_of(raw).name
            end
        end
    end

    -- Removes a semaphore with all it has. Where a tube is behind it, the tube would never let a task go on.
    function semaphores.drop(s, header)
        local tube = tube_behind(s)
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

local function hand_out(s, numbers)
    local events = {}
    for _, number in ipairs(numbers) do
        local event = outbox.hand_out(s, number)
        if event then
            local name, task = told_task(s, event.task)
            events[#events + 1] = number .. struct.pack('<I4Bdc8I2c0', event.attempts, event.kind, event.grant, task, #name, name)
        end
    end
    return '\0' .. table.concat(events)
end

-- Hands out what is due, at most so many.
function semaphores.fetch(s, header)
    return hand_out(s, outbox.due(s, struct.unpack('<d', header, 2)))
end

-- Shows what is due, at most so many, without handing it out.
function semaphores.peek(s, header)
    local due = {}
    for place, number in ipairs(outbox.due(s, struct.unpack('<d', header, 2))) do
        local event = outbox.get(s, number)
        due[place] = struct.pack('<dd', event.next_at, event.stamp) .. number
    end
    return '\0' .. table.concat(due)
end

-- Hands out these.
function semaphores.hand_out(s, header)
    return hand_out(s, read_ids(header, 2))
end

-- The number of the semaphore that is meant: another may have it now. Then the events.
function semaphores.acknowledge(s, header)
    if struct.unpack('<I4', header, 2) ~= s.number then
        return '\3'
    end
    local arrived = 0
    for _, number in ipairs(read_ids(header, 6)) do
        local event = outbox.get(s, number)
        if event then
            arrived = arrived + 1
            outbox.remove(s, event)
            -- The next event of this grant had to wait for this one.
            s.news = s.news or outbox.of_grant(s, event.task, event.grant) ~= ''
            local place = sem.place(s, event.task)
            if event.kind == outbox.ACQUIRED and place and place.status >= HOLDS and place.grant == event.grant
                and place.ack_by ~= NEVER then
                place.ack_by = NEVER
                sem.write(s, event.task, place)
            end
        end
    end
    return '\0' .. struct.pack('<d', arrived)
end

-- A grant ends because nobody spoke up for it. Its task stands in line again after this time, or leaves.
local function expire(s, task, place, leaves, back_after)
    local grant = place.grant
    if outbox.forget(s, task, grant) then
        outbox.tell(s, task, grant, outbox.EXPIRED, 0)
    end
    if leaves then
        sem.remove(s, task, place)
    else
        sem.stand_back(s, task, place, back_after)
    end
end

-- A holder that was asked to release has not done so in time.
local function insist(s, task, place)
    -- The place of a task that is worked on in its tube is free when the work ends, and not before.
    if s.rules.force and #task == 8 then
        outbox.forget(s, task, place.grant)
        outbox.tell(s, task, place.grant, outbox.REVOKED, 0)
        return sem.stand_back(s, task, place, s.rules.cool_down)
    end
    if not outbox.find(s, task, place.grant, outbox.TRY_RELEASE) then
        outbox.tell(s, task, place.grant, outbox.TRY_RELEASE, 1)
    end
    place.revoke_at = later(s.now, s.rules.revoke_grace)
    sem.write(s, task, place)
end

local function end_wait(s, task)
    local place = sem.place(s, task)
    if place.status == STANDS_BACK then
        sem.not_held(place, WAITS, 0)
        sem.write(s, task, place)
    elseif place.lease_until <= s.now then
        -- Who never heard of its grant did not let it run out.
        expire(s, task, place, s.rules.drop_expired and not outbox.is_untold(s, task, place.grant), 0)
    elseif place.ack_by <= s.now then
        -- Whoever should have heard of the grant may be down for a while.
        expire(s, task, place, false, math.max(s.rules.ack_timeout, 0))
    else
        insist(s, task, place)
    end
end

-- What time alone does. Answers whether something was due.
function semaphores.tick(s)
    if sem.next_moment(s) > s.now then
        return '\0' .. struct.pack('<d', 0)
    end
    for _, task in ipairs(redis.call('ZRANGEBYSCORE', s.base .. ':d', '-inf', s.now, 'LIMIT', 0, 10000)) do
        end_wait(s, task)
    end
    settle.all(s)
    return '\0' .. struct.pack('<d', 1)
end

local SEMAPHORE_VERBS = { E = semaphores.enqueue, F = semaphores.finish, L = semaphores.look, N = semaphores.info, V = semaphores.fetch,
    P = semaphores.peek, H = semaphores.hand_out, A = semaphores.acknowledge, I = semaphores.tick, M = semaphores.members,
    D = semaphores.drop }

-- Whether it is there, this clock, the next moment, when the next event may be handed out, whether there are new ones, its
-- number.
local function semaphore_head(s, now)
    if not s then
        return struct.pack('<BdddBI4', 0, now, NEVER, NEVER, 0, 0)
    end
    return struct.pack('<BdddBI4', 1, now, sem.next_moment(s), outbox.next_moment(s), s.news and 1 or 0, s.number)
end

-- The first arguments are those of a tube's call, but instead of a name whether one node has all keys.
local function ask_semaphore(keys, args)
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
            -- A drop may have broken off before the registry knew of it.
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

redis.register_function(NAME .. '_semaphore', ask_semaphore)
redis.register_function({ function_name = NAME .. '_semaphore_free', callback = ask_semaphore, flags = { 'allow-oom' } })
