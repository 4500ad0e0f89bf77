-- Retry policies and rate limits of tubes, in their options; l has the bucket of a rate limit: its level, and the moment of that.

-- A retry policy and a rate limit at this position of a text, and the position behind them.
local PACE = '<dI4dI4BI4dI4'

function pace.read(text, place)
    local retry, rate = {}, {}
    retry.delay, retry.factor, retry.most, retry.jitter, retry.lost, rate.count, rate.per, rate.burst, place =
        struct.unpack(PACE, text, place)
    return retry.delay >= 0 and retry, rate.count > 0 and rate, place
end

-- Reads the options of a tube whose options have this tail.
function pace.read_options(o, raw, tail)
    local _
    o.queue, _, o.keep_done, o.keep_done_max, tail = struct.unpack('<I4I2dd', raw, tail)
    o.retry, o.rate, tail = pace.read(raw, tail)
    o.name, o.semaphore = struct.unpack('<I2c0I2c0', raw, tail)
end

-- The tail of these options.
function pace.options_tail(o)
    local retry, rate = o.retry or { delay = -1, factor = 0, most = 0, jitter = 0, lost = 0 }, o.rate or { count = 0, per = 0, burst = 0 }
    return struct.pack('<I4I2dd', o.queue, pace.EXTENDED, o.keep_done, o.keep_done_max)
        .. struct.pack(PACE, retry.delay, retry.factor, retry.most, retry.jitter, retry.lost, rate.count, rate.per, rate.burst)
        .. struct.pack('<I2c0I2c0', #o.name, o.name, #o.semaphore, o.semaphore)
end

-- The delay of the retry policy of a tube for a task whose current attempt ends.
function pace.delay_of(tube, id, task, seed)
    return tube.options.times and pace.retry_delay(tube.options.retry, task.attempts + 1, seed, (struct.unpack('>I8', id))) or 0
end

-- The stored level of the bucket, and its moment; nothing if it was never used.
local function stored(tube)
    if tube.bucket == nil then
        local text = redis.call('GET', tube.base .. ':l')
        tube.bucket = text and { struct.unpack('<dd', text) } or {}
    end
    return tube.bucket[1], tube.bucket[2]
end

-- The level of the bucket now.
local function level_of(tube)
    local level, at = stored(tube)
    return pace.refilled(tube.options.rate, level, at, tube.now)
end

-- Sets the bucket of a tube, or that it was never used.
function pace.set_bucket(tube, level, at)
    tube.bucket = { level, at }
    if level then
        redis.call('SET', tube.base .. ':l', struct.pack('<dd', level, at))
    else
        redis.call('DEL', tube.base .. ':l')
    end
end

-- How many deliveries the rate limit of a tube allows now.
function pace.tokens_of(tube)
    return pace.tokens(tube.options.rate, level_of(tube))
end

-- When the rate limit of a tube allows the next delivery; nothing if it allows one now.
function pace.next_of(tube)
    local span = pace.next_token(tube.options.rate, level_of(tube))
    return span and tube.now + span
end

-- How many of so many deliveries are allowed. A bucket of a later moment is set to this one.
function pace.allowed(tube, want)
    local _, at = stored(tube)
    if at and at > tube.now then
        pace.set_bucket(tube, level_of(tube), tube.now)
    end
    return math.min(want, pace.tokens_of(tube))
end

-- Takes the tokens of so many deliveries from the bucket.
function pace.spend(tube, deliveries)
    if deliveries > 0 then
        pace.set_bucket(tube, math.max(level_of(tube) - deliveries * tube.options.rate.per, 0), tube.now)
    end
end

-- Adapts the bucket of a tube to a new rate limit, or none, before its options change. The same limit again changes nothing.
function pace.replace_rate(tube, rate)
    local old = tube.options.rate
    if old and rate and (old.count ~= rate.count or old.per ~= rate.per or old.burst ~= rate.burst) then
        pace.set_bucket(tube, pace.replaced(rate, old, level_of(tube)), tube.now)
    elseif not old ~= not rate then
        pace.set_bucket(tube, nil)
    end
end
