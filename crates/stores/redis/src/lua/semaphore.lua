-- One semaphore while a call works on it. Its keys have one hash tag: o rules, s numbers, p places by task, w who waits, a who holds a
-- grant and may be asked to release, r who was asked, k who declined (each the best first), d deadlines, and what outbox.lua has.
--
-- A task of a caller is eight bytes; one of a tube is a mark, the number of the tube and the id, so that it comes after all of
-- those. What changes is written at once.

local RULES = '<I4I4dddddddB'
sem.FORCE, sem.SHED, sem.DROP_EXPIRED = 1, 2, 4
-- Number, last grant, next place, next event, when to look again, how many stand back, how many declined.
local STATE = '<I4dddddd'
-- Behind it stands in which life of Redis it was written.
local STATE_BYTES = 52
-- Status, whether it declined, priority, place in the order of arrival, when it came, until when it stands back, then of a holder: grant, since
-- when, until when, when it must be acknowledged, when it is asked again. Behind it where its tube lives.
local PLACE = '<BBddddddddd'
local PLACE_BYTES = 74

local MAX_REVOKING = 16

function sem.read_rules(raw)
    local r = {}
    local flags
    r.active, r.try_release, r.margin, r.min_hold, r.cool_down, r.max_revoking, r.revoke_grace, r.lease, r.ack_timeout, flags =
        struct.unpack(RULES, raw)
    r.force, r.shed, r.drop_expired = has(flags, sem.FORCE), has(flags, sem.SHED), has(flags, sem.DROP_EXPIRED)
    local tail = math.min(r.try_release, r.active)
    local most = r.max_revoking >= 0 and r.max_revoking or MAX_REVOKING
    r.protected = r.active - tail
    r.revoking_limit = math.min(most, tail)
    -- With no capacity every holder is one too many; otherwise a tail of 0 means that none is ever asked.
    r.shedding_limit = r.try_release == 0 and r.active > 0 and 0 or most
    return r
end

function sem.write_rules(r)
    return struct.pack(RULES, r.active, r.try_release, r.margin, r.min_hold, r.cool_down, r.max_revoking, r.revoke_grace,
        r.lease, r.ack_timeout,
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
    local s = { call = call, key = key, base = base, now = call.now, raw = raw[1], rules = sem.read_rules(raw[1]), places = {},
        moved = {}, state_before = raw[2] }
    s.number, s.grants, s.next_place, s.next_event, s.recheck, s.standing_back, s.declined = struct.unpack(STATE, raw[2])
    if life.is_over(string.sub(raw[2], STATE_BYTES + 1)) then
        s.grants, s.next_event = s.grants + life.JUMP, math.max(s.next_event + life.JUMP, outbox.first_number(call))
    end
    call.semaphores[key] = s
    return s
end

-- Makes one with these rules. Its first event and the grant before its first are at least these.
function sem.create(call, key, number, raw, event, grant)
    local base = '{' .. call.prefix .. ':/' .. key .. '}'
    redis.call('SET', base .. ':o', raw)
    redis.call('SET', base .. ':s', struct.pack(STATE, number, grant or 0, 0, math.max(outbox.first_number(call), event or 0), NEVER, 0, 0)
        .. life.mark())
    call.semaphores[key] = nil
    return sem.open(call, key)
end

-- Its keys but for the rules and the numbers.
local PARTS = { ':p', ':w', ':a', ':r', ':k', ':d', ':e', ':g', ':q' }

-- What is left of a semaphore that was dropped, until the registry knows of it: its number, the first event of a next one, the last grant.
-- Nothing where there is one, or never was.
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

-- The registry knows that it was dropped.
function sem.forget(call, key, remains)
    if sem.remains(call, key) == remains then
        redis.call('UNLINK', '{' .. call.prefix .. ':/' .. key .. '}:s')
    end
end

-- Writes the numbers, when all is done.
function sem.close(s)
    local text = struct.pack(STATE, s.number, s.grants, s.next_place, s.next_event, s.recheck, s.standing_back, s.declined)
        .. life.mark()
    if text ~= s.state_before then
        redis.call('SET', s.base .. ':s', text)
    end
end

-- The order in which a place stands, if it does in one.
local function order_of(place)
    if place.status == WAITS then
        return ':w'
    elseif place.status == ASKED then
        return ':r'
    elseif place.status == HOLDS then
        return place.pinned == 0 and ':a' or ':k'
    end
    return false
end

local function deadline_of(place)
    if place.status == STANDS_BACK then
        return place.until_when
    elseif place.status == WAITS then
        return NEVER
    end
    return math.min(place.lease_until, place.ack_by, place.revoke_at)
end

-- What is counted beside the orders.
local function counter_of(place)
    if place.status == STANDS_BACK then
        return 'standing_back'
    elseif place.status == HOLDS and place.pinned == 1 then
        return 'declined'
    end
    return false
end

function sem.place(s, task)
    local place = s.places[task]
    if place ~= nil then
        return place
    end
    local raw = redis.call('HGET', s.base .. ':p', task)
    place = false
    if raw then
        place = { home = string.sub(raw, PLACE_BYTES + 1) }
        place.status, place.pinned, place.priority, place.seq, place.enqueued, place.until_when, place.grant, place.granted,
            place.lease_until, place.ack_by, place.revoke_at = struct.unpack(PLACE, raw)
        place.order, place.deadline, place.counter = order_of(place), deadline_of(place), counter_of(place)
    end
    s.places[task] = place
    return place
end

local function count_place(s, counter, more)
    if counter then
        s[counter] = s[counter] + more
    end
end

local function tell_moved(s, task)
    if #task > 8 then
        s.moved[#s.moved + 1] = task
    end
end

-- Writes a place that has changed, and puts it where it belongs.
function sem.write(s, task, place)
    local member, order, deadline, counter =
        struct.pack('>I8', place.seq) .. task, order_of(place), deadline_of(place), counter_of(place)
    if place.order and place.order ~= order then
        redis.call('ZREM', s.base .. place.order, member)
    end
    if order then
        redis.call('ZADD', s.base .. order, 0 - place.priority, member)
    end
    if deadline ~= place.deadline then
        if deadline == NEVER then
            redis.call('ZREM', s.base .. ':d', task)
        else
            redis.call('ZADD', s.base .. ':d', deadline, task)
        end
    end
    count_place(s, place.counter, -1)
    count_place(s, counter, 1)
    place.order, place.deadline, place.counter = order, deadline, counter
    redis.call('HSET', s.base .. ':p', task, struct.pack(PLACE, place.status, place.pinned, place.priority, place.seq,
        place.enqueued, place.until_when, place.grant, place.granted, place.lease_until, place.ack_by, place.revoke_at) .. place.home)
    tell_moved(s, task)
end

-- A task leaves.
function sem.remove(s, task, place)
    if place.order then
        redis.call('ZREM', s.base .. place.order, struct.pack('>I8', place.seq) .. task)
    end
    if place.deadline ~= NEVER then
        redis.call('ZREM', s.base .. ':d', task)
    end
    count_place(s, place.counter, -1)
    redis.call('HDEL', s.base .. ':p', task)
    s.places[task] = false
    tell_moved(s, task)
end

-- Holds nothing, or nothing any more.
function sem.not_held(place, status, until_when)
    place.status, place.until_when, place.pinned, place.grant, place.granted = status, until_when, 0, 0, 0
    place.lease_until, place.ack_by, place.revoke_at = NEVER, NEVER, NEVER
end

-- Adds a task, or changes its priority: its seniority stays.
function sem.stand_in_line(s, task, priority, home)
    local place = sem.place(s, task)
    if place then
        if place.priority ~= priority then
            place.priority = priority
            sem.write(s, task, place)
        end
        return
    end
    place = { priority = priority, seq = s.next_place, enqueued = s.now, home = home, deadline = NEVER }
    s.next_place = s.next_place + 1
    sem.not_held(place, WAITS, 0)
    s.places[task] = place
    sem.write(s, task, place)
end

-- A holder stands in line again after this time.
function sem.stand_back(s, task, place, after)
    if after == 0 then
        sem.not_held(place, WAITS, 0)
    else
        sem.not_held(place, STANDS_BACK, later(s.now, after))
    end
    sem.write(s, task, place)
end

function sem.count(s, order)
    return redis.call('ZCARD', s.base .. order)
end

function sem.acquired(s)
    return sem.count(s, ':a') + s.declined
end

-- Who stands at this place of an order, from 0 for the best; -1 is the worst.
function sem.at(s, order, place)
    local found = redis.call('ZRANGE', s.base .. order, place, place)[1]
    return found and string.sub(found, 9)
end

-- Earlier versions only counted who declined: brings them into their order.
local function order_declined(s)
    local cursor = '0'
    repeat
        local some = redis.call('HSCAN', s.base .. ':p', cursor, 'COUNT', 1000)
        cursor = some[1]
        for at = 1, #some[2], 2 do
            local place = sem.place(s, some[2][at])
            if place and place.order == ':k' then
                sem.write(s, some[2][at], place)
            end
        end
    until cursor == '0'
end

-- The task of a member of an order, and its place if it stands there. Functions of an earlier version do not know of the order of those
-- that declined, and leave members in it whose places are gone or elsewhere.
function sem.member(s, order, member)
    local task = string.sub(member, 9)
    local place = sem.place(s, task)
    local stands = place and place.order == order and struct.pack('>I8', place.seq) == string.sub(member, 1, 8)
    return task, stands and place
end

-- Brings the order of those that declined to their number, where functions of an earlier version changed one without the other. Once in
-- a call is enough: no other function runs meanwhile.
function sem.tidy_declined(s)
    if s.is_tidy then
        return
    end
    s.is_tidy = true
    local key = s.base .. ':k'
    if s.declined == 0 then
        redis.call('DEL', key)
        return
    end
    if sem.count(s, ':k') ~= s.declined then
        for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
            local _, place = sem.member(s, ':k', member)
            if not place then
                redis.call('ZREM', key, member)
            end
        end
    end
    if sem.count(s, ':k') < s.declined then
        order_declined(s)
    end
end

-- The best of those that declined.
function sem.best_declined(s)
    sem.tidy_declined(s)
    local best = s.declined > 0 and redis.call('ZRANGE', s.base .. ':k', 0, 0)[1]
    if not best then
        return nil
    end
    local task, place = sem.member(s, ':k', best)
    if place then
        return task
    end
    -- As many are missing as are left over.
    redis.call('ZREM', s.base .. ':k', best)
    s.is_tidy = false
    return sem.best_declined(s)
end

-- How many of an order are better than this priority and number of arrival, which is eight bytes.
function sem.before(s, order, priority, seq)
    local key, score = s.base .. order, string.format('%.17g', 0 - priority)
    local low, high = redis.call('ZCOUNT', key, '-inf', '(' .. score), redis.call('ZCOUNT', key, '-inf', score)
    -- Of equals the ones that came first.
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

-- When time alone next changes something.
function sem.next_moment(s)
    local first = redis.call('ZRANGE', s.base .. ':d', 0, 0, 'WITHSCORES')
    return math.min(first[2] and tonumber(first[2]) or NEVER, s.recheck)
end

