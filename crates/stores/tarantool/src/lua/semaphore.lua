-- Storage of semaphores during a call: their entries and their undelivered events. All of it is read when it is needed and written at once,
-- but for the semaphore's own row, which is written at the end of the call. The rules are in semaphore_rules.lua.

-- Functions of the files about semaphores.
local sem, outbox, rules = {}, {}, {}
local follow, gated_task, tube_task

-- Classes of entries. Holders that declined are not asked again, so they have a class of their own.
local WAITING, COOLING, HOLDING, ASKED, DECLINED = 0, 1, 2, 3, 4
-- An entry: semaphore, task, class, rank (less is better), number of arrival, and so on.
local E_TASK, E_CLASS, E_RANK, E_SEQ, E_ENQUEUED, E_GRANT, E_GRANTED, E_LEASE, E_ACK_BY, E_REVOKE_AT, E_DECLINED, E_DEADLINE, E_NOT_BEFORE =
    2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14
-- An event: number, semaphore, task, grant, kind, deliveries, when the next one is, whether it waits behind another event of its grant.
local V_NUMBER, V_SEMAPHORE, V_TASK, V_GRANT, V_KIND, V_ATTEMPTS, V_DUE, V_BLOCKED = 1, 2, 3, 4, 5, 6, 7, 8

outbox.ACQUIRED, outbox.TRY_RELEASE, outbox.KEEP, outbox.REVOKED, outbox.EXPIRED = 'acquired', 'try_release', 'keep', 'revoked', 'expired'

local STATUS = { [WAITING] = 'waiting', [COOLING] = 'delayed', [HOLDING] = 'granted', [ASKED] = 'try_release', [DECLINED] = 'granted' }
-- Separates the tasks of tubes from the numbers that callers choose: the number of the tube above the task id.
local GATED_TASKS, IDS = 9223372036854775808ULL, {{TASK_ID_MAX}}ULL + 1

-- The number of a tube's task in a semaphore.
function gated_task(of, id)
    return GATED_TASKS + IDS * of + id
end

-- The tube and the id of a task, if it belongs to a tube.
function tube_task(task)
    if task < GATED_TASKS then
        return nil
    end
    local position = task - GATED_TASKS
    return tonumber(position / IDS), tonumber(position % IDS)
end

function sem.is_tube_task(task)
    return task >= GATED_TASKS
end

function sem.is_idle(_, entry)
    local of, id = tube_task(entry[E_TASK])
    return of ~= nil and S.taken:get({ of, id }) == nil
end

-- Tubes are always up to date here.
function sem.refresh()
    return false
end

local function read_config(o)
    local r = { active = o[1], try_release = o[2], margin = tonumber(o[3]), min_hold = tonumber(o[4]), cool_down = tonumber(o[5]),
        revoke_grace = tonumber(o[6]), force = o[7], shed = o[8], drop_expired = o[9], max_revoking = given(o[10]), lease = number(o[11]),
        ack_timeout = number(o[12]) }
    rules.derive_limits(r)
    return r
end

function sem.set_options(s, options)
    s.options, s.config = options, read_config(options)
end

local function read_semaphore(c, row)
    local s = { c = c, now = c.now, number = row[1], key = row[2], grants = row[4], recheck = moment(row[5]), seq = row[13],
        events = row[12], count = { [WAITING] = row[7], [COOLING] = row[8], [HOLDING] = row[9], [DECLINED] = row[10], [ASKED] = row[11] } }
    sem.set_options(s, row[3])
    return s
end

function sem.open(c, of)
    local s = c.semaphores[of]
    if not s then
        s = read_semaphore(c, S.semaphore:get(of))
        c.semaphores[of] = s
    end
    return s
end

function find_semaphore(c, key)
    local row = S.semaphore.index[1]:get(key)
    return row and sem.open(c, row[1])
end

-- Creates one with these options; `recheck` is when to look again.
function sem.create(c, key, options, grants, recheck)
    local of = free_number(S.semaphore)
    S.semaphore:insert({ of, key, options, grants, recheck, STORED_NEVER, 0, 0, 0, 0, 0, 0, 0 })
    return sem.open(c, of)
end

local function write_semaphore(s)
    local first = S.place.index[2]:select({ s.number }, { limit = 1 })[1]
    local wakeup = math.min(first and moment(first[E_DEADLINE]) or NEVER, s.recheck)
    local n = s.count
    S.semaphore:replace({ s.number, s.key, s.options, s.grants, stamp(s.recheck), stamp(wakeup), n[WAITING], n[COOLING], n[HOLDING],
        n[DECLINED], n[ASKED], s.events, s.seq })
end

function flush_semaphores(c)
    for _, s in pairs(c.semaphores) do
        if s.changed then
            s.changed = false
            write_semaphore(s)
        end
    end
end

local function class_of(entry)
    if entry[E_GRANT] == nil then
        return entry[E_NOT_BEFORE] == nil and WAITING or COOLING
    elseif entry[E_REVOKE_AT] ~= nil then
        return ASKED
    end
    return entry[E_DECLINED] and DECLINED or HOLDING
end

-- When time alone next changes an entry.
local function deadline_of(entry)
    if entry[E_GRANT] == nil then
        return entry[E_NOT_BEFORE] == nil and STORED_NEVER or entry[E_NOT_BEFORE]
    end
    local at = math.min(moment(entry[E_LEASE]), moment(entry[E_ACK_BY]))
    if entry[E_REVOKE_AT] ~= nil then
        at = math.min(at, moment(entry[E_REVOKE_AT]))
    end
    return stamp(at)
end

local function note_moved(s, task)
    if task >= GATED_TASKS then
        local moved = s.c.moved
        moved[#moved + 1] = task
    end
end

function sem.find(s, task)
    return S.place:get({ s.number, task })
end

-- Changes fields of an entry, by their positions.
local function change(s, entry, changes)
    local row = entry:totable()
    for field, value in pairs(changes) do
        row[field] = value
    end
    s.count[row[E_CLASS]] = s.count[row[E_CLASS]] - 1
    row[E_CLASS], row[E_DEADLINE] = class_of(row), deadline_of(row)
    s.count[row[E_CLASS]] = s.count[row[E_CLASS]] + 1
    s.changed = true
    note_moved(s, row[E_TASK])
    S.place:replace(row)
end

function sem.remove(s, entry)
    S.place:delete({ s.number, entry[E_TASK] })
    s.count[entry[E_CLASS]] = s.count[entry[E_CLASS]] - 1
    s.changed = true
    note_moved(s, entry[E_TASK])
end

function sem.add(s, task, priority)
    s.seq = s.seq + 1
    s.count[WAITING] = s.count[WAITING] + 1
    s.changed = true
    S.place:insert({ s.number, task, WAITING, -priority + 0, s.seq, s.now, NULL, NULL, NULL, NULL, NULL, false, STORED_NEVER, NULL })
    note_moved(s, task)
end

function sem.set_priority(s, entry, priority)
    change(s, entry, { [E_RANK] = -priority + 0 })
end

function sem.set_waiting(s, entry, after)
    change(s, entry, { [E_GRANT] = NULL, [E_GRANTED] = NULL, [E_LEASE] = NULL, [E_ACK_BY] = NULL, [E_REVOKE_AT] = NULL,
        [E_DECLINED] = false, [E_NOT_BEFORE] = after == 0 and NULL or stamp(later(s.now, after)) })
end

function sem.set_granted(s, entry, grant, lease_until, ack_by)
    change(s, entry, { [E_GRANT] = grant, [E_GRANTED] = s.now, [E_LEASE] = stamp(lease_until), [E_ACK_BY] = stamp(ack_by),
        [E_REVOKE_AT] = NULL, [E_DECLINED] = false, [E_NOT_BEFORE] = NULL })
end

function sem.set_asked(s, entry, revoke_at)
    change(s, entry, { [E_REVOKE_AT] = stamp(revoke_at) })
end

function sem.set_kept(s, entry)
    change(s, entry, { [E_REVOKE_AT] = NULL })
end

function sem.set_declined(s, entry, declined)
    if declined then
        change(s, entry, { [E_DECLINED] = true, [E_REVOKE_AT] = NULL, [E_ACK_BY] = STORED_NEVER })
    else
        change(s, entry, { [E_DECLINED] = false })
    end
end

function sem.set_lease(s, entry, lease_until)
    change(s, entry, { [E_LEASE] = stamp(lease_until), [E_ACK_BY] = STORED_NEVER })
end

function sem.set_acknowledged(s, entry)
    change(s, entry, { [E_ACK_BY] = STORED_NEVER })
end

function sem.priority(entry)
    return -tonumber(entry[E_RANK]) + 0
end

function sem.is_holding(entry)
    return entry[E_GRANT] ~= nil
end

function sem.is_asked(entry)
    return entry[E_CLASS] == ASKED
end

function sem.has_declined(entry)
    return entry[E_DECLINED]
end

function sem.awaits_ack(entry)
    return entry[E_ACK_BY] ~= STORED_NEVER
end

function sem.count_askable(s)
    return s.count[HOLDING]
end

function sem.count_asked(s)
    return s.count[ASKED]
end

function sem.count_granted(s)
    return s.count[HOLDING] + s.count[DECLINED]
end

function sem.waiter(s, rank)
    return S.place.index[1]:select({ s.number, WAITING }, { limit = 1, offset = rank })[1]
end

function sem.worst_holder(s)
    return S.place.index[1]:select({ s.number, HOLDING }, { limit = 1, iterator = 'REQ' })[1]
end

function sem.best_asked(s)
    return S.place.index[1]:select({ s.number, ASKED }, { limit = 1 })[1]
end

function sem.best_declined(s)
    return s.count[DECLINED] > 0 and S.place.index[1]:select({ s.number, DECLINED }, { limit = 1 })[1]
end

-- How many of a class are better than an entry; counts up to `most`.
local function count_before(s, class, entry, most)
    local before = S.place.index[1]:select({ s.number, class, entry[E_RANK], entry[E_SEQ] }, { iterator = 'LT', limit = most })
    local found = 0
    for _, other in ipairs(before) do
        if other[1] ~= s.number or other[E_CLASS] ~= class then
            break
        end
        found = found + 1
    end
    return found
end

-- How many waiting members are better than an entry, whether or not it waits itself; counts up to `most`.
function sem.waiting_before(s, entry, most)
    local rank, seq = entry[E_RANK], entry[E_SEQ]
    return (positions.count_rows(S.place.index[1], { s.number, WAITING }, most, function(other)
        local is_better = other[E_RANK] < rank or other[E_RANK] == rank and other[E_SEQ] < seq
        return other[1] == s.number and other[E_CLASS] == WAITING and is_better
            and { s.number, WAITING, other[E_RANK], other[E_SEQ] }
    end))
end

function sem.count_better(s, entry, most)
    return count_before(s, DECLINED, entry, most) + count_before(s, ASKED, entry, most)
end

-- The events of a grant, the oldest first.
function outbox.of_grant(s, task, grant)
    return S.event.index[3]:select({ s.number, task, grant })
end

function outbox.find(s, task, grant, kind)
    for _, event in ipairs(outbox.of_grant(s, task, grant)) do
        if event[V_KIND] == kind then
            return event
        end
    end
end

-- Removes an event. Of each grant only the first is delivered, so the next one may be now: answers it.
function outbox.remove(s, event)
    S.event:delete(event[V_NUMBER])
    s.events = s.events - 1
    s.changed = true
    local first = S.event.index[3]:select({ s.number, event[V_TASK], event[V_GRANT] }, { limit = 1 })[1]
    if first and first[V_BLOCKED] == 1 then
        S.event:update(first[V_NUMBER], { { '=', V_BLOCKED, 0 } })
    end
    return first
end

-- Adds an event for a holder that counts as delivered so many times already.
function outbox.add(s, task, grant, kind, attempts)
    local id = read_meta('event') or 0
    write_meta('event', id + 1)
    local blocked = outbox.of_grant(s, task, grant)[1] and 1 or 0
    S.event:insert({ id, s.number, task, grant, kind, attempts, s.now, blocked })
    s.events = s.events + 1
    s.changed = true
    outbox.notify(s)
    outbox.announce(s.c, s.now)
end

-- Whether the holder cannot know of its grant yet.
function outbox.is_unsent(s, task, grant)
    local acquired = outbox.find(s, task, grant, outbox.ACQUIRED)
    return acquired ~= nil and acquired[V_ATTEMPTS] == 0
end

-- Removes all events of a grant. Answers whether the holder may know of the grant.
function outbox.clear(s, task, grant)
    local unsent = outbox.is_unsent(s, task, grant)
    for _, event in ipairs(outbox.of_grant(s, task, grant)) do
        outbox.remove(s, event)
    end
    return not unsent
end

-- Up to when due events were announced to servers that wait for events. It is a hint and in no space: an event that becomes due again writes
-- nothing into the log.
local announced = 0

-- A call announces events up to a moment; that is valid when the call is done.
function outbox.announce(c, at)
    c.announced = math.max(c.announced or 0, at)
end

function confirm_announced(c)
    announced = math.max(announced, c.announced or 0)
end

function reset_announced()
    announced = 0
end

-- The first moment after the announced ones at which an event may be delivered.
local function next_event(c)
    local known = math.max(announced, c.announced or 0)
    local first = S.event.index[1]:select({ 0, known + 1 }, { iterator = 'GE', limit = 1 })[1]
    return first and first[V_BLOCKED] == 0 and moment(first[V_DUE]) or NEVER
end

-- The semaphore may have events to deliver.
function outbox.notify(s)
    local keys = s.c.event_keys
    if type(keys) == 'table' then
        keys[s.key] = true
    end
end

-- Notes the semaphores of which events became due since the announced moment; all of them, where those are many.
function outbox.note_due(c)
    local first = { 0, math.max(announced, c.announced or 0) + 1 }
    local due = S.event.index[1]:select(first, { iterator = 'GE', limit = STEP })
    for _, event in ipairs(due) do
        if event[V_BLOCKED] ~= 0 or event[V_DUE] > c.now then
            return
        end
        outbox.notify(sem.open(c, event[V_SEMAPHORE]))
    end
    if #due == STEP then
        c.event_keys = true
    end
end

-- When time alone next changes something, or makes an event due.
function next_semaphore(c)
    local first = S.semaphore.index[2]:min()
    return math.min(first and moment(first[6]) or NEVER, next_event(c))
end

-- An entry as answers show it.
function sem.standing(entry)
    local lease = given(entry[E_LEASE])
    return { entry[E_TASK], STATUS[entry[E_CLASS]], sem.priority(entry), entry[E_ENQUEUED], entry[E_DECLINED],
        entry[E_NOT_BEFORE], entry[E_GRANT], entry[E_GRANTED], lease and lease < STORED_NEVER and lease or NULL }
end
