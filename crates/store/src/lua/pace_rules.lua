-- The delays of retry policies and the tokens of rate limits, computed exactly as `retry.rs` and `rate.rs` of the core do it. Nothing here
-- reads or writes the database. The library declares the table `pace`.
--
-- A policy has `delay`, `factor`, `most` (its longest delay), `jitter` and `lost`; a limit has `count`, `per` and `burst`. Whole numbers are
-- below 2^53; `math.fmod` is exact for them, `%` is not.

local MODULUS, INCREMENT = 67108859, 12345

-- A division of whole numbers, rounded down or up.
local function divided(a, b)
    return (a - math.fmod(a, b)) / b
end

local function divided_up(a, b)
    return divided(a, b) + (math.fmod(a, b) > 0 and 1 or 0)
end

-- A number from -1 to 1 for this task, from the random number of a command.
local function draw(seed, id)
    local x = math.fmod(seed + id, MODULUS)
    for _ = 1, 2 do
        x = math.fmod(math.fmod(x * x, MODULUS) * x + INCREMENT, MODULUS)
    end
    return 2 * x / (MODULUS - 1) - 1
end

-- The delay of a task after its failed attempt of this number, from 1.
function pace.retry_delay(policy, attempt, seed, id)
    local value, most, factor = policy.delay, policy.most, policy.factor / 1000.0
    for _ = 1, math.min(attempt - 1, {{RETRY_GROWTH_MAX}}) do
        if value >= most then
            break
        end
        value = value * factor
    end
    value = math.min(value, most)
    return math.floor(value * (1.0 + policy.jitter / 1000.0 * draw(seed, id)))
end

-- The level of a bucket at this moment, which had a level at another one. A bucket without a level was never used, and is full.
function pace.refilled(rate, level, at, now)
    local full = rate.per * rate.burst
    if not level then
        return full
    elseif now < at then
        return math.min(level, full)
    elseif now - at >= divided_up(math.max(full - level, 0), rate.count) then
        return full
    end
    return level + (now - at) * rate.count
end

-- How many tokens a level has.
function pace.tokens(rate, level)
    return divided(level, rate.per)
end

-- How long it takes until a level has a token; nil if it has one.
function pace.next_token(rate, level)
    return level < rate.per and divided_up(rate.per - level, rate.count) or nil
end

-- The level of a limit that replaces another one with this level.
function pace.replaced(rate, old, level)
    return math.min(pace.tokens(old, level), rate.burst) * rate.per
end
