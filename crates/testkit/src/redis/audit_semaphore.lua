-- Compares the orders of a semaphore with its entries, and returns the differences as text.
local base, wrong = KEYS[1], {}
local NEVER = 9007199254740992
local raw = redis.call('MGET', base .. ':o', base .. ':s')
if not raw[1] then
    return ''
end
local active = struct.unpack('<I4', raw[1])
local _, grants, _, _, _, standing_back, declined = struct.unpack('<I4dddddd', raw[2])
local sizes = { w = 0, a = 0, r = 0, k = 0, d = 0, back = 0 }

local function same(what, expected, found)
    if expected ~= found then
        wrong[#wrong + 1] = what .. ': ' .. tostring(found) .. ' instead of ' .. tostring(expected)
    end
end

local places = redis.call('HGETALL', base .. ':p')
for at = 1, #places, 2 do
    local task, status, pinned, priority, seq, _, until_when, grant, _, lease_until, ack_by, revoke_at =
        places[at], struct.unpack('<BBddddddddd', places[at + 1])
    local order = status == 0 and 'w' or status == 3 and 'r' or status == 2 and (pinned == 0 and 'a' or 'k')
    if order then
        local score = redis.call('ZSCORE', base .. ':' .. order, struct.pack('>I8', seq) .. task)
        same('a place in ' .. order, 0 - priority, score and tonumber(score))
        sizes[order] = sizes[order] + 1
    elseif status == 1 then
        sizes.back = sizes.back + 1
    end
    local deadline = status == 0 and NEVER or status == 1 and until_when or math.min(lease_until, ack_by, revoke_at)
    local score = redis.call('ZSCORE', base .. ':d', task)
    same('a deadline', deadline, score and tonumber(score) or NEVER)
    sizes.d = sizes.d + (deadline ~= NEVER and 1 or 0)
    same('a grant that was given', true, grant <= grants)
end

for _, order in ipairs({ 'w', 'a', 'r', 'k', 'd' }) do
    same('places in ' .. order, sizes[order], redis.call('ZCARD', base .. ':' .. order))
end
same('who stands back', sizes.back, standing_back)
same('who declined', sizes.k, declined)
local held = sizes.a + sizes.r + sizes.k
same('no more than may', true, held <= active)
same('no free place while a task waits', true, held == active or sizes.w == 0)

-- Of each grant the first event may be handed out, and no other.
local numbers, first = 0, 0
local of_grants = redis.call('HGETALL', base .. ':g')
for at = 2, #of_grants, 2 do
    numbers, first = numbers + #of_grants[at] / 8, first + 1
end
same('events', numbers, redis.call('HLEN', base .. ':e'))
same('events that may be handed out', first, redis.call('ZCARD', base .. ':q'))
return table.concat(wrong, '; ')
