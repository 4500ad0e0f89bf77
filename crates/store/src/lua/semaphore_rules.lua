-- The rules of semaphores: which waiting task gets a grant, which holder is asked to release, and how a grant ends. The steps are those
-- of the core's semaphore machine, in its order. The Redis and the Tarantool library share this file; each provides storage.
--
-- `s` is one semaphore during a call. It has `now`, `config` (see `derive_limits`), `grants` (the last grant number) and `recheck` (when
-- to look again although no deadline has passed). An entry is one task in a semaphore. Fields of entries and events are read with the
-- keys E_* and V_*, which each library defines for its own representation.
--
-- Storage that a library provides:
--   sem.find(s, task)               the entry of a task, or nil or false
--   sem.waiter(s, n)                the n-th best waiting entry, from 0
--   sem.worst_holder(s)             the worst holder that may be asked to release
--   sem.best_asked(s)               the best holder that is asked to release
--   sem.best_declined(s)            the best holder that declined
--   sem.count_askable(s)            the number of holders that may be asked
--   sem.count_asked(s)              the number of holders that are asked
--   sem.count_granted(s)            the number of holders that are not asked, with those that declined
--   sem.count_better(s, entry, most) how many holders that declined or are asked are better than an entry; it may stop at `most`
--   sem.priority(entry)             its priority; more is better
--   sem.is_holding(entry), sem.is_asked(entry), sem.has_declined(entry), sem.awaits_ack(entry)
--   sem.set_granted(s, entry, grant, lease_until, ack_by), sem.set_asked(s, entry, revoke_at), sem.set_kept(s, entry),
--   sem.set_declined(s, entry, declined), sem.set_lease(s, entry, lease_until), sem.set_acknowledged(s, entry),
--   sem.set_waiting(s, entry, after) the entry loses its grant and waits again, after this time
--   sem.add(s, task, priority, home), sem.set_priority(s, entry, priority), sem.remove(s, entry)
--   sem.is_tube_task(task)          whether a task belongs to a tube, which sees its grants itself
--   sem.is_idle(s, entry)           whether it belongs to a tube and is not taken there
--   sem.refresh(s, entry)           brings the tube of a task up to date; whether that changed the semaphore
--   outbox.add(s, task, grant, kind, attempts), outbox.find(s, task, grant, kind), outbox.notify(s)
--   outbox.remove(s, event)         whether another event of the grant follows
--   outbox.is_unsent(s, task, grant) whether the holder cannot know of its grant yet
--   outbox.clear(s, task, grant)    removes all events of a grant; whether the holder may know of the grant

local LARGEST = 1.7976931348623157e308
local MAX_REVOKING = 16
-- How long after its first delivery an event is delivered again, and at most, in microseconds.
local VISIBILITY, VISIBILITY_MAX = 30 * 1000000, 600 * 1000000

-- Completes a configuration from active, try_release and max_revoking (nil: not given).
function rules.derive_limits(r)
    local tail = math.min(r.try_release, r.active)
    local most = r.max_revoking or MAX_REVOKING
    r.tail = tail
    -- The best holders are never asked to release.
    r.protected = r.active - tail
    r.revoking_limit = math.min(most, tail)
    -- With no capacity every holder is one too many; otherwise a tail of 0 means that none is ever asked.
    r.shedding_limit = r.try_release == 0 and r.active > 0 and 0 or most
end

-- Grants a free place to the best waiting task.
local function grant_next(s)
    local r = s.config
    if sem.count_granted(s) + sem.count_asked(s) >= r.active then
        return false
    end
    local entry = sem.waiter(s, 0)
    if not entry then
        return false
    end
    local task = entry[E_TASK]
    -- A tube sees the grants of its tasks itself, and there a delivery has its own lease.
    local has_events = not sem.is_tube_task(task)
    s.grants = s.grants + 1
    local grant = s.grants
    sem.set_granted(s, entry, grant, has_events and r.lease and later(s.now, r.lease) or NEVER,
        has_events and r.ack_timeout and later(s.now, r.ack_timeout) or NEVER)
    if has_events then
        outbox.add(s, task, grant, outbox.ACQUIRED, 0)
    end
    return true
end

-- Asks a holder to release. A holder that cannot know of its grant yet, or a task of a tube that is not taken, loses the grant at once.
local function ask_to_release(s, entry)
    local task, grant = entry[E_TASK], entry[E_GRANT]
    if outbox.is_unsent(s, task, grant) or sem.is_idle(s, entry) then
        outbox.clear(s, task, grant)
        return sem.set_waiting(s, entry, 0)
    end
    sem.set_asked(s, entry, later(s.now, s.config.revoke_grace))
    local keep = outbox.find(s, task, grant, outbox.KEEP)
    if keep then
        outbox.remove(s, keep)
    end
    -- A holder with an undelivered `keep` is asked again, because the first request may be lost. But it may also have arrived, so this
    -- request counts as delivered: if it is withdrawn, `keep` must follow.
    outbox.add(s, task, grant, outbox.TRY_RELEASE, keep and 1 or 0)
end

-- Whether the worst holder that can be asked is outside of the protected ones. All that can be asked are better than the worst of them;
-- of the other holders some are.
local function may_ask(s, entry)
    local missing = s.config.protected + 1 - sem.count_askable(s)
    return missing <= 0 or sem.count_better(s, entry, missing) >= missing
end

-- Whether a priority exceeds another by more than a margin. Their sum may be beyond the largest number.
local function beats(wanted, held, margin)
    return held < LARGEST - margin and wanted > held + margin
end

-- Asks the worst holder to release for a better waiting task: one holder for each of those.
local function revoke(s)
    local r, asked = s.config, sem.count_asked(s)
    if sem.count_granted(s) + asked ~= r.active or asked >= r.revoking_limit then
        return false
    end
    local wanted, holder = sem.waiter(s, asked), sem.worst_holder(s)
    if not wanted or not holder or not beats(sem.priority(wanted), sem.priority(holder), r.margin) or not may_ask(s, holder) then
        return false
    end
    local ripe_at = later(tonumber(holder[E_GRANTED]), r.min_hold)
    if ripe_at > s.now then
        s.recheck = ripe_at
        return false
    end
    if not sem.refresh(s, holder) then
        ask_to_release(s, holder)
    end
    return true
end

-- Asks the worst holder to release when there are more than the capacity allows, because it was lowered.
local function shed(s)
    local r = s.config
    if not r.shed or sem.count_granted(s) <= r.active or sem.count_asked(s) >= r.shedding_limit then
        return false
    end
    local holder = sem.worst_holder(s)
    if not holder or not may_ask(s, holder) then
        return false
    end
    if not sem.refresh(s, holder) then
        ask_to_release(s, holder)
    end
    return true
end

-- Lets the best holder that is asked to release keep its grant when no better task waits for it any more. It gets an event, unless it
-- cannot know of the request.
local function withdraw_request(s)
    local asked, r = sem.count_asked(s), s.config
    local excess = r.shed and math.max(sem.count_granted(s) + asked - r.active, 0) or 0
    local for_waiters = asked - excess - 1
    local holder = for_waiters >= 0 and sem.best_asked(s)
    if not holder then
        return false
    end
    local wanted = sem.waiter(s, for_waiters)
    if wanted and sem.priority(wanted) > sem.priority(holder) then
        return false
    end
    local task, grant = holder[E_TASK], holder[E_GRANT]
    sem.set_kept(s, holder)
    local request = outbox.find(s, task, grant, outbox.TRY_RELEASE)
    if request then
        outbox.remove(s, request)
        if request[V_ATTEMPTS] == 0 then
            return true
        end
    end
    outbox.add(s, task, grant, outbox.KEEP, 0)
    return true
end

-- A decline is valid as long as the request that it answered would be: when no better task waits, and the holder is not one of too
-- many, it may be asked again.
local function end_decline(s)
    local r = s.config
    if r.shed and sem.count_granted(s) + sem.count_asked(s) > r.active then
        return false
    end
    local holder = sem.best_declined(s)
    if not holder then
        return false
    end
    local wanted = sem.waiter(s, 0)
    if wanted and sem.priority(wanted) > sem.priority(holder) then
        return false
    end
    sem.set_declined(s, holder, false)
    return true
end

-- Takes steps until none is left to take, or the limit of steps is reached: then the next tick goes on. Everything that changes a
-- semaphore ends with it.
function rules.admit_waiters(s)
    local left = {{ADMIT_STEPS_MAX}}
    s.changed = true
    while true do
        s.recheck = NEVER
        local cost = 1
        if not grant_next(s) then
            -- The other steps skip as many waiting tasks as there are requests.
            cost = 1 + math.floor(sem.count_asked(s) / {{ADMIT_STEP_PLACES}})
            if not (withdraw_request(s) or end_decline(s) or revoke(s) or shed(s)) then
                return
            end
        end
        left = left - cost
        if left <= 0 then
            s.recheck = s.now
            return
        end
    end
end

-- Adds a waiting task, or changes its priority: its seniority stays.
function rules.enqueue(s, task, priority, home)
    local entry = sem.find(s, task)
    if not entry then
        sem.add(s, task, priority, home)
    elseif sem.priority(entry) ~= priority then
        sem.set_priority(s, entry, priority)
    end
end

-- Brings the entry of a tube's task in line with its state there: 'waits' (ready, or ready if it had a grant), 'taken' or nil (neither).
function rules.follow_tube(s, task, state, priority, home)
    local entry = sem.find(s, task)
    if state == 'waits' then
        if entry and sem.is_asked(entry) then
            outbox.clear(s, task, entry[E_GRANT])
            sem.set_waiting(s, entry, s.config.cool_down)
        else
            -- A put that replaces the task may give it another priority.
            rules.enqueue(s, task, priority, home)
        end
    elseif entry and state ~= 'taken' then
        if sem.is_holding(entry) then
            outbox.clear(s, task, entry[E_GRANT])
        end
        sem.remove(s, entry)
    end
end

rules.RELEASE, rules.YIELD, rules.DECLINE, rules.EXTEND = 0, 1, 2, 3
rules.DONE, rules.STALE, rules.MISSING, rules.NOT_ASKED = 0, 1, 2, 3

local function finish_holding(s, entry, verb, span)
    local task, grant = entry[E_TASK], entry[E_GRANT]
    if verb == rules.EXTEND then
        -- A holder that extends its grant knows of it, so the next event may be delivered.
        local acquired = outbox.find(s, task, grant, outbox.ACQUIRED)
        if acquired and outbox.remove(s, acquired) then
            outbox.notify(s)
        end
        return sem.set_lease(s, entry, later(s.now, span))
    end
    outbox.clear(s, task, grant)
    if verb == rules.RELEASE then
        sem.remove(s, entry)
    elseif verb == rules.YIELD then
        sem.set_waiting(s, entry, s.config.cool_down)
    else
        sem.set_declined(s, entry, true)
    end
end

-- Does one verb of a holder; a grant of nil is the current one. Answers the outcome.
function rules.finish_grant(s, task, grant, verb, span)
    local entry = sem.find(s, task)
    if not entry then
        return rules.MISSING
    end
    local holding = sem.is_holding(entry)
    if grant and not (holding and entry[E_GRANT] == grant) then
        return rules.STALE
    elseif holding and verb == rules.DECLINE and not sem.is_asked(entry) then
        -- There is no request. A second decline is the same as the first.
        return sem.has_declined(entry) and rules.DONE or rules.NOT_ASKED
    elseif holding then
        finish_holding(s, entry, verb, span)
        return rules.DONE
    elseif verb == rules.RELEASE then
        sem.remove(s, entry)
        return rules.DONE
    end
    -- A yield was done before; there is nothing to decline or extend.
    return verb == rules.YIELD and rules.DONE or rules.STALE
end

-- Ends a grant whose time is over. Its task waits again after this time, or leaves.
local function expire(s, entry, leaves, after)
    local task, grant = entry[E_TASK], entry[E_GRANT]
    if outbox.clear(s, task, grant) then
        outbox.add(s, task, grant, outbox.EXPIRED, 0)
    end
    if leaves then
        sem.remove(s, entry)
    else
        sem.set_waiting(s, entry, after)
    end
end

-- A holder did not release in time: it loses its grant where the rules say so, otherwise it is asked again.
local function enforce_request(s, entry)
    local task, grant = entry[E_TASK], entry[E_GRANT]
    -- A task of a tube keeps its grant until its delivery ends.
    if s.config.force and not sem.is_tube_task(task) then
        outbox.clear(s, task, grant)
        outbox.add(s, task, grant, outbox.REVOKED, 0)
        return sem.set_waiting(s, entry, s.config.cool_down)
    end
    if not outbox.find(s, task, grant, outbox.TRY_RELEASE) then
        outbox.add(s, task, grant, outbox.TRY_RELEASE, 1)
    end
    sem.set_asked(s, entry, later(s.now, s.config.revoke_grace))
end

-- Applies the deadline of an entry, which has passed.
function rules.apply_deadline(s, entry)
    if not sem.is_holding(entry) then
        sem.set_waiting(s, entry, 0)
    elseif entry[E_LEASE] <= s.now then
        -- A holder that cannot know of its grant did not let it run out.
        local leaves = s.config.drop_expired and not outbox.is_unsent(s, entry[E_TASK], entry[E_GRANT])
        expire(s, entry, leaves, 0)
    elseif entry[E_ACK_BY] <= s.now then
        -- The recipient of the grant may be down for a while.
        expire(s, entry, false, s.config.ack_timeout or 0)
    else
        enforce_request(s, entry)
    end
end

-- An event has arrived.
function rules.acknowledge(s, event)
    if outbox.remove(s, event) then
        -- The next event of the grant may be delivered.
        outbox.notify(s)
    end
    local entry = event[V_KIND] == outbox.ACQUIRED and sem.find(s, event[V_TASK])
    if entry and sem.is_holding(entry) and entry[E_GRANT] == event[V_GRANT] and sem.awaits_ack(entry) then
        sem.set_acknowledged(s, entry)
    end
end

-- The number of deliveries of an event after one more, and when it is delivered again.
function rules.next_delivery(now, attempts)
    attempts = math.min(attempts + 1, ATTEMPTS_MAX)
    return attempts, later(now, math.min(VISIBILITY * 2 ^ math.min(attempts - 1, 10), VISIBILITY_MAX))
end

-- Merges the best entries of several orders: sorted, at most so many.
function rules.best_entries(entries, most)
    table.sort(entries, function(one, other)
        local a, b = sem.priority(one), sem.priority(other)
        return a > b or a == b and one[E_SEQ] < other[E_SEQ]
    end)
    for at = #entries, most + 1, -1 do
        entries[at] = nil
    end
    return entries
end
