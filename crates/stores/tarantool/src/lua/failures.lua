-- The latest failures of a task, as the bytes that all stores have: `failure.rs` of the core describes them.

local FAILURES_MAX = {{FAILURES_MAX}}
-- Bytes of an entry without its texts. The last three are the lengths of its texts.
local HEAD_BYTES = 23

-- These failures without the oldest ones, so that there is room for one more.
local function with_room(failures)
    local starts, at = {}, 1
    while at <= #failures do
        starts[#starts + 1] = at
        local worker, high, low = string.byte(failures, at + HEAD_BYTES - 3, at + HEAD_BYTES - 1)
        at = at + HEAD_BYTES + worker + high * 256 + low
    end
    local first = starts[#starts + 2 - FAILURES_MAX]
    return first and string.sub(failures, first) or failures
end

-- The failures of a task with one more, which its delivery adds before it ends at this moment. Answers nil if there is too little memory: deliveries must end
-- even then, and the memory is for them.
function with_failure(c, task, delivery, at, why)
    if c.full == nil then
        c.full = is_full()
    end
    if c.full then
        return nil
    end
    local run, worker = 0, ''
    if delivery then
        run = math.min(math.max(at - tonumber(delivery[D_START]), 0), FOREVER)
        worker = given(delivery[D_WORKER]) or ''
    end
    local before, attempt = task[FAILURES], count_attempt(task[ATTEMPTS])
    return table.concat({ before == nil and '' or with_room(before), big_endian(at, 8), big_endian(attempt, 4), big_endian(run, 8),
        big_endian(#worker, 1), big_endian(#why, 2), worker, why })
end
