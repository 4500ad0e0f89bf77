-- Storage of one semaphore during a call. Its keys have one hash tag: o configuration, s numbers, p entries by task, w waiting tasks, a
-- holders that may be asked to release, r holders that are asked, k holders that declined (each the best first), d deadlines, and those
-- of outbox.lua. The rules are in semaphore_rules.lua.
--
-- A task of a caller is eight bytes; a task of a tube is a mark, the number of the tube and the id, so that it sorts behind all tasks of
-- callers. Changes are written at once.

-- The keys of fields that the rules read.
local E_TASK, E_GRANT, E_GRANTED, E_LEASE, E_ACK_BY, E_SEQ = 'task', 'grant', 'granted', 'lease_until', 'ack_by', 'seq'
local V_TASK, V_GRANT, V_KIND, V_ATTEMPTS = 'task', 'grant', 'kind', 'attempts'

local CONFIG = '<I4I4dddddddB'
sem.FORCE, sem.SHED, sem.DROP_EXPIRED = 1, 2, 4
-- Number, last grant, next number of arrival, next event, when to look again, how many tasks cool down, how many holders declined.
local STATE = '<I4dddddd'
-- The incarnation of Redis that wrote it follows.
local STATE_BYTES = 52
-- Status, whether it declined, priority, number of arrival, when it was enqueued, until when it cools down; then of a holder: grant, since
-- when, until when, when it must be acknowledged, when it is asked again. The tag of its tube follows.
local ENTRY = '<BBddddddddd'
local ENTRY_BYTES = 74

local function given(value)
    return value >= 0 and value or nil
end

function sem.read_config(raw)
    local r, flags = {}, nil
    r.active, r.try_release, r.margin, r.min_hold, r.cool_down, r.max_revoking, r.revoke_grace, r.lease, r.ack_timeout, flags =
        struct.unpack(CONFIG, raw)
    r.max_revoking, r.lease, r.ack_timeout = given(r.max_revoking), given(r.lease), given(r.ack_timeout)
    r.force, r.shed, r.drop_expired = has(flags, sem.FORCE), has(flags, sem.SHED), has(flags, sem.DROP_EXPIRED)
    rules.derive_limits(r)
    return r
end

function sem.write_config(r)
    return struct.pack(CONFIG, r.active, r.try_release, r.margin, r.min_hold, r.cool_down, r.max_revoking or -1, r.revoke_grace,
        r.lease or -1, r.ack_timeout or -1,
        (r.force and sem.FORCE or 0) + (r.shed and sem.SHED or 0) + (r.drop_expired and sem.DROP_EXPIRED or 0))
end

-- The semaphore of this key, or false where there is none.
function sem.open(call, key)
    local known = call.semaphores[key]
    if known ~= nil then
        return known
    end
    local base = '{' .. call.prefix .. ':/' .. key .. '}'
    local raw = redis.call('MGET', base .. ':o', base .. ':s')
    if not raw[1] then
        call.semaphores[key] = false
        return false
    end
    local s = { call = call, key = key, base = base, now = call.now, raw = raw[1], config = sem.read_config(raw[1]), entries = {},
        moved = {}, state_before = raw[2] }
    s.number, s.grants, s.next_seq, s.next_event, s.recheck, s.cooling, s.declined = struct.unpack(STATE, raw[2])
    if incarnation.is_earlier(string.sub(raw[2], STATE_BYTES + 1)) then
        s.grants, s.next_event = s.grants + incarnation.SKIP, math.max(s.next_event + incarnation.SKIP, outbox.first_number(call))
    end
    call.semaphores[key] = s
    return s
end

-- Creates one with this configuration. Its first event and the grant before its first are at least these.
function sem.create(call, key, number, raw, event, grant)
    local base = '{' .. call.prefix .. ':/' .. key .. '}'
    redis.call('SET', base .. ':o', raw)
    redis.call('SET', base .. ':s', struct.pack(STATE, number, grant or 0, 0, math.max(outbox.first_number(call), event or 0), NEVER, 0, 0)
        .. incarnation.id())
    call.semaphores[key] = nil
    return sem.open(call, key)
end

-- Its keys but for the configuration and the numbers.
local PARTS = { ':p', ':w', ':a', ':r', ':k', ':d', ':e', ':g', ':q' }

-- The numbers of a semaphore that was dropped, until the registry has them: its number, the first event of the next one, the last grant.
-- Nil where there is one, or never was.
function sem.remains(call, key)
    local base = '{' .. call.prefix .. ':/' .. key .. '}'
    local raw = redis.call('MGET', base .. ':o', base .. ':s')
    if raw[1] or not raw[2] then
        return nil
    end
    local number, grants, _, events = struct.unpack(STATE, raw[2])
    return struct.pack('<I4dd', number, events + 1, grants)
end

-- Removes it, but for its numbers.
function sem.drop(s)
    sem.close(s)
    redis.call('UNLINK', s.base .. ':o')
    for _, part in ipairs(PARTS) do
        redis.call('UNLINK', s.base .. part)
    end
    s.call.semaphores[s.key] = nil
    return sem.remains(s.call, s.key)
end

-- The registry has the numbers of a dropped semaphore.
function sem.forget(call, key, remains)
    if sem.remains(call, key) == remains then
        redis.call('UNLINK', '{' .. call.prefix .. ':/' .. key .. '}:s')
    end
end

-- Writes the numbers at the end of a call.
function sem.close(s)
    local text = struct.pack(STATE, s.number, s.grants, s.next_seq, s.next_event, s.recheck, s.cooling, s.declined)
        .. incarnation.id()
    if text ~= s.state_before then
        redis.call('SET', s.base .. ':s', text)
    end
end

-- The order that an entry is in, if it is in one.
local function order_of(entry)
    if entry.status == WAITING then
        return ':w'
    elseif entry.status == ASKED then
        return ':r'
    elseif entry.status == HOLDING then
        return entry.declined == 0 and ':a' or ':k'
    end
    return false
end

local function deadline_of(entry)
    if entry.status == COOLING then
        return entry.until_when
    elseif entry.status == WAITING then
        return NEVER
    end
    return math.min(entry.lease_until, entry.ack_by, entry.revoke_at)
end

-- What is counted beside the orders.
local function counter_of(entry)
    if entry.status == COOLING then
        return 'cooling'
    elseif entry.status == HOLDING and entry.declined == 1 then
        return 'declined'
    end
    return false
end

function sem.find(s, task)
    local entry = s.entries[task]
    if entry ~= nil then
        return entry
    end
    local raw = redis.call('HGET', s.base .. ':p', task)
    entry = false
    if raw then
        entry = { task = task, tag = string.sub(raw, ENTRY_BYTES + 1) }
        entry.status, entry.declined, entry.priority, entry.seq, entry.enqueued, entry.until_when, entry.grant, entry.granted,
            entry.lease_until, entry.ack_by, entry.revoke_at = struct.unpack(ENTRY, raw)
        entry.order, entry.deadline, entry.counter = order_of(entry), deadline_of(entry), counter_of(entry)
    end
    s.entries[task] = entry
    return entry
end

local function add_to_counter(s, counter, more)
    if counter then
        s[counter] = s[counter] + more
    end
end

local function note_moved(s, task)
    if #task > 8 then
        s.moved[#s.moved + 1] = task
    end
end

-- Writes an entry that has changed, and moves it to its order.
function sem.write(s, entry)
    local task = entry.task
    local member, order, deadline, counter =
        struct.pack('>I8', entry.seq) .. task, order_of(entry), deadline_of(entry), counter_of(entry)
    if entry.order and entry.order ~= order then
        redis.call('ZREM', s.base .. entry.order, member)
    end
    if order then
        redis.call('ZADD', s.base .. order, 0 - entry.priority, member)
    end
    if deadline ~= entry.deadline then
        if deadline == NEVER then
            redis.call('ZREM', s.base .. ':d', task)
        else
            redis.call('ZADD', s.base .. ':d', deadline, task)
        end
    end
    add_to_counter(s, entry.counter, -1)
    add_to_counter(s, counter, 1)
    entry.order, entry.deadline, entry.counter = order, deadline, counter
    redis.call('HSET', s.base .. ':p', task, struct.pack(ENTRY, entry.status, entry.declined, entry.priority, entry.seq,
        entry.enqueued, entry.until_when, entry.grant, entry.granted, entry.lease_until, entry.ack_by, entry.revoke_at) .. entry.tag)
    note_moved(s, task)
end

function sem.remove(s, entry)
    local task = entry.task
    if entry.order then
        redis.call('ZREM', s.base .. entry.order, struct.pack('>I8', entry.seq) .. task)
    end
    if entry.deadline ~= NEVER then
        redis.call('ZREM', s.base .. ':d', task)
    end
    add_to_counter(s, entry.counter, -1)
    redis.call('HDEL', s.base .. ':p', task)
    s.entries[task] = false
    note_moved(s, task)
end

-- Sets an entry without a grant.
local function clear_grant(entry, status, until_when)
    entry.status, entry.until_when, entry.declined, entry.grant, entry.granted = status, until_when, 0, 0, 0
    entry.lease_until, entry.ack_by, entry.revoke_at = NEVER, NEVER, NEVER
end

function sem.add(s, task, priority, tag)
    local entry = { task = task, priority = priority, seq = s.next_seq, enqueued = s.now, tag = tag, deadline = NEVER }
    s.next_seq = s.next_seq + 1
    clear_grant(entry, WAITING, 0)
    s.entries[task] = entry
    sem.write(s, entry)
end

function sem.set_priority(s, entry, priority)
    entry.priority = priority
    sem.write(s, entry)
end

function sem.set_waiting(s, entry, after)
    if after == 0 then
        clear_grant(entry, WAITING, 0)
    else
        clear_grant(entry, COOLING, later(s.now, after))
    end
    sem.write(s, entry)
end

function sem.set_granted(s, entry, grant, lease_until, ack_by)
    entry.status, entry.declined, entry.grant, entry.granted = HOLDING, 0, grant, s.now
    entry.lease_until, entry.ack_by, entry.revoke_at = lease_until, ack_by, NEVER
    sem.write(s, entry)
end

function sem.set_asked(s, entry, revoke_at)
    entry.status, entry.revoke_at = ASKED, revoke_at
    sem.write(s, entry)
end

function sem.set_kept(s, entry)
    entry.status, entry.revoke_at = HOLDING, NEVER
    sem.write(s, entry)
end

function sem.set_declined(s, entry, declined)
    if declined then
        entry.status, entry.declined, entry.revoke_at, entry.ack_by = HOLDING, 1, NEVER, NEVER
    else
        entry.declined = 0
    end
    sem.write(s, entry)
end

function sem.set_lease(s, entry, lease_until)
    entry.lease_until, entry.ack_by = lease_until, NEVER
    sem.write(s, entry)
end

function sem.set_acknowledged(s, entry)
    entry.ack_by = NEVER
    sem.write(s, entry)
end

function sem.priority(entry)
    return entry.priority
end

function sem.is_holding(entry)
    return entry.status >= HOLDING
end

function sem.is_asked(entry)
    return entry.status == ASKED
end

function sem.has_declined(entry)
    return entry.declined == 1
end

function sem.awaits_ack(entry)
    return entry.ack_by ~= NEVER
end

function sem.is_tube_task(task)
    return #task > 8
end

function sem.size(s, order)
    return redis.call('ZCARD', s.base .. order)
end

function sem.count_askable(s)
    return redis.call('ZCARD', s.base .. ':a')
end

function sem.count_asked(s)
    return redis.call('ZCARD', s.base .. ':r')
end

function sem.count_granted(s)
    return redis.call('ZCARD', s.base .. ':a') + s.declined
end

-- The entry at this rank of an order, from 0 for the best; -1 is the worst.
local function entry_at(s, order, rank)
    local found = redis.call('ZRANGE', s.base .. order, rank, rank)[1]
    return found and sem.find(s, string.sub(found, 9))
end

function sem.waiter(s, rank)
    return entry_at(s, ':w', rank)
end

function sem.worst_holder(s)
    return entry_at(s, ':a', -1)
end

function sem.best_asked(s)
    return entry_at(s, ':r', 0)
end

-- Earlier versions only counted the holders that declined: brings them into their order.
local function order_declined(s)
    local cursor = '0'
    repeat
        local some = redis.call('HSCAN', s.base .. ':p', cursor, 'COUNT', 1000)
        cursor = some[1]
        for at = 1, #some[2], 2 do
            local entry = sem.find(s, some[2][at])
            if entry and entry.order == ':k' then
                sem.write(s, entry)
            end
        end
    until cursor == '0'
end

-- The entry of a member of an order, if it is in that order. Functions of an earlier version do not know the order of holders that
-- declined, and leave members in it whose entries are gone or in another order.
function sem.member(s, order, member)
    local entry = sem.find(s, string.sub(member, 9))
    return entry and entry.order == order and struct.pack('>I8', entry.seq) == string.sub(member, 1, 8) and entry
end

-- Brings the order of holders that declined in line with their number, where functions of an earlier version changed one without the
-- other. Once in a call is enough: no other function runs meanwhile.
function sem.repair_declined(s)
    if s.is_repaired then
        return
    end
    s.is_repaired = true
    local key = s.base .. ':k'
    if s.declined == 0 then
        redis.call('DEL', key)
        return
    end
    if sem.size(s, ':k') ~= s.declined then
        for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
            if not sem.member(s, ':k', member) then
                redis.call('ZREM', key, member)
            end
        end
    end
    if sem.size(s, ':k') < s.declined then
        order_declined(s)
    end
end

function sem.best_declined(s)
    sem.repair_declined(s)
    local best = s.declined > 0 and redis.call('ZRANGE', s.base .. ':k', 0, 0)[1]
    if not best then
        return nil
    end
    local entry = sem.member(s, ':k', best)
    if entry then
        return entry
    end
    -- As many are missing as are left over.
    redis.call('ZREM', s.base .. ':k', best)
    s.is_repaired = false
    return sem.best_declined(s)
end

-- How many of an order are better than this priority and number of arrival, which is eight bytes.
function sem.before(s, order, priority, seq)
    local key, score = s.base .. order, string.format('%.17g', 0 - priority)
    local low, high = redis.call('ZCOUNT', key, '-inf', '(' .. score), redis.call('ZCOUNT', key, '-inf', score)
    -- Of equals those that arrived first.
    while low < high do
        local middle = math.floor((low + high) / 2)
        if string.sub(redis.call('ZRANGE', key, middle, middle)[1], 1, 8) < seq then
            low = middle + 1
        else
            high = middle
        end
    end
    return low
end

function sem.count_better(s, entry)
    local seq = struct.pack('>I8', entry.seq)
    return sem.before(s, ':k', entry.priority, seq) + sem.before(s, ':r', entry.priority, seq)
end

-- When time alone next changes something.
function sem.next_moment(s)
    local first = redis.call('ZRANGE', s.base .. ':d', 0, 0, 'WITHSCORES')
    return math.min(first[2] and tonumber(first[2]) or NEVER, s.recheck)
end

