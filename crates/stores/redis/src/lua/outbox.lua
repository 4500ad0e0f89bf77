-- Events of a semaphore that are not acknowledged yet: e by number, g numbers by grant, q deliverable ones by moment. Of each grant only
-- the first is in q, so that a later event never arrives before an earlier one.

outbox.ACQUIRED, outbox.TRY_RELEASE, outbox.KEEP, outbox.REVOKED, outbox.EXPIRED = 0, 1, 2, 3, 4

-- Kind, number of deliveries, when the next one is, grant, its number among the events of all semaphores; the task follows.
local EVENT = '<BI4ddd'
local EVENT_BYTES = 29

-- Numbers of events have 36 bits. A new semaphore begins at the clock, so that no number repeats although Redis lost it: this many a
-- second, from the year 2025 on.
local NUMBERS_A_SECOND, NUMBERS_SINCE = 32, 1735689600

function outbox.first_number(call)
    -- A moment that the caller gives says nothing about other incarnations.
    if call.args[1] ~= '' then
        return 0
    end
    return math.max(math.floor(call.now / 1000000) - NUMBERS_SINCE, 0) * NUMBERS_A_SECOND
end

local function grant_field(task, grant)
    return task .. struct.pack('>I8', grant)
end

function outbox.get(s, number)
    local raw = redis.call('HGET', s.base .. ':e', number)
    if not raw then
        return nil
    end
    local event = { number = number, task = string.sub(raw, EVENT_BYTES + 1) }
    event.kind, event.attempts, event.next_at, event.grant, event.stamp = struct.unpack(EVENT, raw)
    return event
end

local function write_event(s, event)
    redis.call('HSET', s.base .. ':e', event.number, struct.pack(EVENT, event.kind, event.attempts, event.next_at, event.grant,
        event.stamp) .. event.task)
end

local function link(s, event)
    redis.call('ZADD', s.base .. ':q', event.next_at, struct.pack('>I8', event.stamp) .. event.number)
end

local function unlink(s, event)
    redis.call('ZREM', s.base .. ':q', struct.pack('>I8', event.stamp) .. event.number)
end

-- The numbers of the events of a grant, the oldest first, as one text.
function outbox.of_grant(s, task, grant)
    return redis.call('HGET', s.base .. ':g', grant_field(task, grant)) or ''
end

-- Events of all semaphores are delivered in the order in which they were made, where one node can count them.
local function next_stamp(s)
    if not s.call.single then
        return s.next_event
    end
    return redis.call('INCR', '{' .. s.call.prefix .. '}:stamp')
end

-- The caller may have something to deliver.
function outbox.notify(s)
    s.notify = true
end

-- Adds an event for a holder that counts as delivered so many times already.
function outbox.add(s, task, grant, kind, attempts)
    local event = { number = struct.pack('>I8', s.next_event), kind = kind, attempts = attempts, next_at = s.now, grant = grant,
        stamp = next_stamp(s), task = task }
    s.next_event = s.next_event + 1
    write_event(s, event)
    local before = outbox.of_grant(s, task, grant)
    redis.call('HSET', s.base .. ':g', grant_field(task, grant), before .. event.number)
    if before == '' then
        link(s, event)
    end
    outbox.notify(s)
end

function outbox.remove(s, event)
    local numbers, left = outbox.of_grant(s, event.task, event.grant), {}
    for place = 1, #numbers, 8 do
        local number = string.sub(numbers, place, place + 7)
        if number ~= event.number then
            left[#left + 1] = number
        end
    end
    unlink(s, event)
    redis.call('HDEL', s.base .. ':e', event.number)
    if #left == 0 then
        redis.call('HDEL', s.base .. ':g', grant_field(event.task, event.grant))
        return false
    end
    redis.call('HSET', s.base .. ':g', grant_field(event.task, event.grant), table.concat(left))
    link(s, outbox.get(s, left[1]))
    return true
end

-- The event of this kind of a grant.
function outbox.find(s, task, grant, kind)
    local numbers = outbox.of_grant(s, task, grant)
    for place = 1, #numbers, 8 do
        local event = outbox.get(s, string.sub(numbers, place, place + 7))
        if event.kind == kind then
            return event
        end
    end
end

-- Whether the holder cannot know of its grant yet.
function outbox.is_unsent(s, task, grant)
    local event = outbox.find(s, task, grant, outbox.ACQUIRED)
    return event and event.attempts == 0
end

-- Removes all events of a grant. Answers whether the holder may know of the grant.
function outbox.clear(s, task, grant)
    local unsent = outbox.is_unsent(s, task, grant)
    local numbers = outbox.of_grant(s, task, grant)
    for place = 1, #numbers, 8 do
        outbox.remove(s, outbox.get(s, string.sub(numbers, place, place + 7)))
    end
    return not unsent
end

-- The events that may be delivered now, in order, at most so many.
function outbox.due(s, most)
    local found = {}
    if most > 0 then
        for place, member in ipairs(redis.call('ZRANGEBYSCORE', s.base .. ':q', '-inf', s.now, 'LIMIT', 0, most)) do
            found[place] = string.sub(member, 9)
        end
    end
    return found
end

-- Delivers an event, if it is due.
function outbox.deliver(s, number)
    local event = outbox.get(s, number)
    if not event or event.next_at > s.now or string.sub(outbox.of_grant(s, event.task, event.grant), 1, 8) ~= number then
        return nil
    end
    unlink(s, event)
    event.attempts, event.next_at = rules.next_delivery(s.now, event.attempts)
    write_event(s, event)
    link(s, event)
    return event
end

-- When the next event may be delivered.
function outbox.next_moment(s)
    local first = redis.call('ZRANGE', s.base .. ':q', 0, 0, 'WITHSCORES')
    return first[2] and tonumber(first[2]) or NEVER
end

