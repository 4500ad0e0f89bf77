-- Who gets in, and who is asked to leave: run at the end of everything that changes a semaphore. The steps are those of
-- the core's semaphore/settle.rs, in its order.

local SETTLE_STEPS_MAX, SETTLE_STEP_PLACES = 20000, 64

-- The best who waits gets a free place.
function settle.admit(s)
    if sem.acquired(s) + sem.count(s, ':r') >= s.rules.active then
        return false
    end
    local task = sem.at(s, ':w', 0)
    if not task then
        return false
    end
    local place = sem.place(s, task)
    -- A tube sees for itself that its task was let in, and who works on it has a lease there.
    local told = #task == 8
    s.grants = s.grants + 1
    place.status, place.pinned, place.grant, place.granted = HOLDS, 0, s.grants, s.now
    place.lease_until = told and s.rules.lease >= 0 and later(s.now, s.rules.lease) or NEVER
    place.ack_by = told and s.rules.ack_timeout >= 0 and later(s.now, s.rules.ack_timeout) or NEVER
    place.revoke_at = NEVER
    sem.write(s, task, place)
    if told then
        outbox.tell(s, task, place.grant, outbox.ACQUIRED, 0)
    end
    return true
end

-- Asks a holder to release. One that nobody told of its grant, or that nobody works on, loses it without a word.
local function ask_to_release(s, task, place)
    if outbox.is_untold(s, task, place.grant) or gates.is_idle(s, task, place) then
        outbox.forget(s, task, place.grant)
        sem.not_held(place, WAITS, 0)
        sem.write(s, task, place)
        return
    end
    place.status, place.revoke_at = ASKED, later(s.now, s.rules.revoke_grace)
    sem.write(s, task, place)
    local keep = outbox.find(s, task, place.grant, outbox.KEEP)
    if keep then
        outbox.remove(s, keep)
    end
    -- Also to one that was not told yet that it may stay: the first request may be lost. But that one may have been heard as
    -- well, so this one counts as told: if it is taken back, the word that it may stay must follow.
    outbox.tell(s, task, place.grant, outbox.TRY_RELEASE, keep and 1 or 0)
end

-- Whether the worst who can be asked is outside of the best of all holders, which never are. Those that can be asked are
-- better than the worst of them, and of the others some are.
local function may_ask(s, place)
    local missing = s.rules.protected + 1 - sem.count(s, ':a')
    if missing <= 0 then
        return true
    end
    local seq = struct.pack('>I8', place.seq)
    return sem.before(s, ':k', place.priority, seq) + sem.before(s, ':r', place.priority, seq) >= missing
end

local LARGEST = 1.7976931348623157e308

local function beats(wanted, held, margin)
    return held < LARGEST - margin and wanted > held + margin
end

-- The worst holder is asked to release for somebody better who waits: one holder for each of those.
function settle.revoke(s)
    local asked = sem.count(s, ':r')
    if sem.acquired(s) + asked ~= s.rules.active or asked >= s.rules.revoking_limit then
        return false
    end
    local waiter, holder = sem.at(s, ':w', asked), sem.at(s, ':a', -1)
    if not waiter or not holder then
        return false
    end
    local place = sem.place(s, holder)
    if not beats(sem.place(s, waiter).priority, place.priority, s.rules.margin) or not may_ask(s, place) then
        return false
    end
    local ripe_at = later(place.granted, s.rules.min_hold)
    if ripe_at > s.now then
        s.recheck = ripe_at
        return false
    end
    if not gates.rouse(s, holder, place) then
        ask_to_release(s, holder, place)
    end
    return true
end

-- The capacity was lowered: the worst holders are asked to release, whoever waits.
function settle.shed(s)
    local rules = s.rules
    if not rules.shed or sem.acquired(s) <= rules.active or sem.count(s, ':r') >= rules.shedding_limit then
        return false
    end
    local holder = sem.at(s, ':a', -1)
    if not holder then
        return false
    end
    local place = sem.place(s, holder)
    if not may_ask(s, place) then
        return false
    end
    if not gates.rouse(s, holder, place) then
        ask_to_release(s, holder, place)
    end
    return true
end

-- Tells a holder that it need not release, unless it never heard that it should.
local function take_back_request(s, task, place)
    local request = outbox.find(s, task, place.grant, outbox.TRY_RELEASE)
    if request then
        outbox.remove(s, request)
        if request.attempts == 0 then
            return
        end
    end
    outbox.tell(s, task, place.grant, outbox.KEEP, 0)
end

-- The best who was asked to release keeps its grant, when nobody better waits for it any more.
function settle.unrevoke(s)
    local asked = sem.count(s, ':r')
    local excess = math.max(sem.acquired(s) + asked - s.rules.active, 0)
    local for_waiters = asked - (s.rules.shed and excess or 0) - 1
    local holder = for_waiters >= 0 and sem.at(s, ':r', 0)
    if not holder then
        return false
    end
    local place, waiter = sem.place(s, holder), sem.at(s, ':w', for_waiters)
    if waiter and sem.place(s, waiter).priority > place.priority then
        return false
    end
    place.status, place.revoke_at = HOLDS, NEVER
    sem.write(s, holder, place)
    take_back_request(s, holder, place)
    return true
end

-- A decline stands as long as the request that it answered would: when no better task waits for the place, and it is not one of too
-- many, its holder may be asked again.
function settle.end_decline(s)
    local holder = sem.best_declined(s)
    if not holder or s.rules.shed and sem.acquired(s) + sem.count(s, ':r') > s.rules.active then
        return false
    end
    local place, waiter = sem.place(s, holder), sem.at(s, ':w', 0)
    if waiter and sem.place(s, waiter).priority > place.priority then
        return false
    end
    place.pinned = 0
    sem.write(s, holder, place)
    return true
end

-- Takes steps until none is left to take, or so many were taken that others should have their turn.
function settle.all(s)
    local left = SETTLE_STEPS_MAX
    while true do
        s.recheck = NEVER
        local cost = 1
        if not settle.admit(s) then
            cost = 1 + math.floor(sem.count(s, ':r') / SETTLE_STEP_PLACES)
            if not (settle.unrevoke(s) or settle.end_decline(s) or settle.revoke(s) or settle.shed(s)) then
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

