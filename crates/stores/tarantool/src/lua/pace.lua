-- Retry policies and rate limits of tubes. Both are options; the bucket of a limit is a row of its own, once tokens were used.

-- A tube is about to get a retry policy or a rate limit. Answers a refusal if they cannot be stored.
function pace.begin()
    return formats.need(3, 'bucket', 'retry policies and rate limits')
end

-- The retry policy in the options of a tube.
function pace.policy_of(row)
    return { delay = tonumber(row[1]), factor = row[2], most = tonumber(row[3]), jitter = row[4], lost = row[5] }
end

-- The rate limit in the options of a tube.
function pace.limit_of(row)
    return { count = row[1], per = tonumber(row[2]), burst = row[3] }
end

-- How long a task waits whose delivery failed, or ended with its lease.
function pace.delay_of(tube, task, seed)
    if not tube.o.times then
        return 0
    end
    return pace.retry_delay(tube.o.retry, (count_attempt(task[ATTEMPTS])), tonumber(seed), tonumber(task[ID]))
end

-- The level of a tube's bucket now, and the moment that is stored.
local function level_of(tube)
    local row = S.bucket:get(tube.number)
    local level, at = row and tonumber(row[2]), row and moment(row[3])
    return pace.refilled(tube.o.rate, level, at, tube.now), at
end

local function set_level(tube, level)
    S.bucket:replace({ tube.number, level, tube.now })
end

-- How many of so many deliveries the limit allows now.
function pace.allowed(c, tube, count)
    local level, at = level_of(tube)
    if at and at > tube.now then
        set_level(tube, level)
        mark_changed(c, tube)
    end
    return math.min(count, pace.tokens(tube.o.rate, level))
end

-- Uses the tokens of so many deliveries.
function pace.spend(tube, deliveries)
    set_level(tube, level_of(tube) - deliveries * tube.o.rate.per)
end

-- How many tasks can be taken now.
function pace.takeable(tube)
    return math.min(tube.n.takeable, pace.tokens(tube.o.rate, level_of(tube)))
end

-- When the limit allows the next delivery; never if it allows one now.
function pace.next_delivery(tube)
    local wait = pace.next_token(tube.o.rate, level_of(tube))
    return wait and tube.now + wait or NEVER
end

-- Writes the unchanged bucket of a tube: a transaction that writes counts also writes to the log.
function pace.touch(tube)
    local row = S.bucket:get(tube.number)
    if row then
        S.bucket:replace(row)
    end
end

-- Adapts the bucket of a tube, which still has its old options, to a new limit or none.
function pace.replace_limit(tube, new)
    local old, rate = tube.o.rate, new ~= nil and pace.limit_of(new) or nil
    if old and rate and old.count == rate.count and old.per == rate.per and old.burst == rate.burst then
        return
    elseif old and rate then
        set_level(tube, pace.replaced(rate, old, (level_of(tube))))
    elseif old or rate then
        S.bucket:delete(tube.number)
    end
end

-- The bucket of a tube as it is stored, if it has one: level and moment.
function pace.export(of)
    local row = S.bucket and S.bucket:get(of)
    return row and row[2] or NULL, row and row[3] or NULL
end

-- Gives an imported tube its policy, limit and bucket.
function pace.import(tube, retry, rate, level, at)
    if retry == nil and rate == nil then
        return
    end
    local refusal = pace.begin()
    if refusal then
        error(refusal[3], 0)
    end
    tube.options[O.retry], tube.options[O.rate] = given(retry) or NULL, given(rate) or NULL
    if level ~= nil then
        S.bucket:replace({ tube.number, level, stamp(moment(at)) })
    end
end
