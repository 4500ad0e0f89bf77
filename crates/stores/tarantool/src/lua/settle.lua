-- Who gets in, and who is asked to leave: run at the end of everything that changes a semaphore.

local STEPS_MAX, STEP_PLACES = 20000, 64
local MAX_REVOKING = 16
local LARGEST = 1.7976931348623157e308

-- Whether a rank is better than another by more than a margin. The sum of two numbers may be beyond all numbers.
local function beats(rank, other, margin)
    return -other < LARGEST - margin and -rank > -other + margin
end

-- The best who waits gets a free place.
local function admit(c, s)
    if held(s) >= s.active then
        return false
    end
    local place = waiter(s, 0)
    if not place then
        return false
    end
    s.grant_seq = s.grant_seq + 1
    local task = place[P_TASK]
    -- A tube sees for itself that its task was let in, and who works on it has a lease there.
    local is_told = not tube_task(task)
    local function ending(span)
        return is_told and span and stamp(later(c.now, span)) or NEVER
    end
    set_place(c, s, place, { [P_GRANT] = s.grant_seq, [P_GRANTED] = c.now, [P_LEASE] = ending(s.lease),
        [P_ACK_BY] = ending(s.ack_timeout), [P_REVOKE_AT] = NULL, [P_PINNED] = false, [P_NOT_BEFORE] = NULL })
    if is_told then
        tell_holder(c, s, task, s.grant_seq, 'acquired')
    end
    return true
end

-- Whether a task is one of a tube and nobody works on it: it can lose its grant without a word.
local function is_idle(task)
    local of, id = tube_task(task)
    return of ~= nil and S.taken:get({ of, id }) == nil
end

-- Asks a holder to release. One that nobody told of its grant, or that nobody works on, loses it without a word.
local function ask_to_release(c, s, place)
    local task, grant = place[P_TASK], place[P_GRANT]
    if is_untold(s, task, grant) or is_idle(task) then
        forget_events(s, task, grant)
        return stand_back(c, s, place, 0)
    end
    set_place(c, s, place, { [P_REVOKE_AT] = stamp(later(c.now, s.revoke_grace)) })
    local keep = find_event(s, task, grant, 'keep')
    if keep then
        remove_event(s, keep)
    end
    -- Also to one that was not told yet that it may stay: the first request may be lost. But that one may have been heard as
    -- well, so this one counts as told: if it is taken back, `keep` must follow.
    tell_holder(c, s, task, grant, 'try_release', keep and 1 or 0)
end

-- How many of a class are better than a place; counts up to `most`.
local function count_before(s, class, place, most)
    local before = S.place.index[1]:select({ s.number, class, place[P_RANK], place[P_SEQ] }, { iterator = 'LT', limit = most })
    local found = 0
    for _, other in ipairs(before) do
        if other[1] ~= s.number or other[P_CLASS] ~= class then
            break
        end
        found = found + 1
    end
    return found
end

-- Whether the worst who can be asked is outside of the best of all holders, which never are. Those that can be asked are
-- better than the worst of them, and of the others some are.
local function may_ask(s, place)
    local missing = s.protected + 1 - s.count[HOLDS]
    if missing <= 0 then
        return true
    end
    return count_before(s, PINNED, place, missing) + count_before(s, ASKED, place, missing) >= missing
end

-- The worst holder is asked to release for one who waits and is better. Answers also when to look again.
local function revoke(c, s)
    local most = math.min(s.max_revoking or MAX_REVOKING, s.tail)
    if held(s) ~= s.active or s.count[ASKED] >= most then
        return false
    end
    local wanted, holder = waiter(s, s.count[ASKED]), worst_holder(s)
    if not wanted or not holder or not beats(tonumber(wanted[P_RANK]), tonumber(holder[P_RANK]), s.margin) then
        return false
    end
    if not may_ask(s, holder) then
        return false
    end
    local ripe_at = later(moment(holder[P_GRANTED]), s.min_hold)
    if ripe_at > c.now then
        return false, ripe_at
    end
    ask_to_release(c, s, holder)
    return true
end

-- The capacity was lowered: the worst holders are asked to release, whoever waits.
local function shed(c, s)
    local too_many = s.count[HOLDS] + s.count[PINNED] > s.active
    -- With no capacity every holder is one too many; otherwise a tail of 0 means that none is ever asked.
    local most = s.try_release == 0 and s.active > 0 and 0 or s.max_revoking or MAX_REVOKING
    if not s.shed or not too_many or s.count[ASKED] >= most then
        return false
    end
    local holder = worst_holder(s)
    if not holder or not may_ask(s, holder) then
        return false
    end
    ask_to_release(c, s, holder)
    return true
end

-- The best who was asked to release keeps its grant, when nobody better waits for it any more.
local function unrevoke(c, s)
    local excess = s.shed and math.max(held(s) - s.active, 0) or 0
    local asked_for_waiters = s.count[ASKED] - excess - 1
    local holder = asked_for_waiters >= 0 and best_asked(s)
    if not holder then
        return false
    end
    local wanted = waiter(s, asked_for_waiters)
    if wanted and tonumber(wanted[P_RANK]) < tonumber(holder[P_RANK]) then
        return false
    end
    local task, grant = holder[P_TASK], holder[P_GRANT]
    set_place(c, s, holder, { [P_REVOKE_AT] = NULL })
    local request = find_event(s, task, grant, 'try_release')
    if request then
        remove_event(s, request)
        if request[6] == 0 then
            -- It never heard that it should.
            return true
        end
    end
    tell_holder(c, s, task, grant, 'keep')
    return true
end

-- A decline stands as long as the request that it answered would: when no better task waits for the place, and it is not
-- one of too many, its holder may be asked again.
local function end_decline(c, s)
    if s.count[PINNED] == 0 or s.shed and held(s) > s.active then
        return false
    end
    local holder, wanted = best_declined(s), waiter(s, 0)
    if not holder or wanted and tonumber(wanted[P_RANK]) < tonumber(holder[P_RANK]) then
        return false
    end
    set_place(c, s, holder, { [P_PINNED] = false })
    return true
end

-- Takes one step, if there is one to take. Answers what it cost, and when to look again.
local function step(c, s)
    if admit(c, s) then
        return 1
    end
    -- The others look for one who waits behind as many as were asked.
    local cost = 1 + math.floor(s.count[ASKED] / STEP_PLACES)
    if unrevoke(c, s) or end_decline(c, s) then
        return cost
    end
    local done, recheck = revoke(c, s)
    if done or shed(c, s) then
        return cost
    end
    return nil, recheck
end

-- Takes steps until none is left to take, or so many were taken that others should have their turn: then the next tick
-- goes on.
function settle_semaphore(c, s)
    local left, recheck = STEPS_MAX, FAR
    while true do
        local cost, again_at = step(c, s)
        if not cost then
            recheck = again_at or FAR
            break
        end
        left = left - cost
        if left <= 0 then
            recheck = c.now
            break
        end
    end
    s.recheck, s.changed = recheck, true
end
