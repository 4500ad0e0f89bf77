-- Compares the orders of a tube with its tasks, and returns the differences as text.
local base, wrong = KEYS[1], {}
local NEVER = 9007199254740992
local raw = redis.call('GET', base .. ':o')
if not raw then
    return ''
end
local kind = struct.unpack('B', raw)
local subqueues = kind >= 3
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local sizes = { b = 0, r = 0, q = 0, x = 0, d = 0, w = 0, s = 0, delayed = 0, all = 0, passed = 0 }
local heads, busy, keys = {}, {}, {}
local holders = 0

local function check(id, what, is)
    if not is then
        local number = struct.unpack('>I8', id)
        wrong[#wrong + 1] = string.format('task %d %s', number, what)
    end
end

local tasks = redis.call('HGETALL', base .. ':t')
for place = 1, #tasks, 2 do
    local id, record = tasks[place], tasks[place + 1]
    local state, moment, attempts, pri, _, expires, _, _, tail, bytes = struct.unpack('<Bddc8ddddI4I4', record)
    local rest = 66
    -- A quarter of an attempt says that there is an own number of attempts, a key, or both.
    if attempts % 0.5 > 0 then
        local sign = string.byte(record, rest)
        rest = rest + (sign == 64 and 1 or 5)
        if sign ~= 35 then
            local unique
            unique, rest = select(2, struct.unpack('<dBc0', record, rest))
            holders = holders + 1
            check(id, 'does not hold its key', redis.call('HGET', base .. ':y', unique) == id)
        end
    end
    -- A star begins a priority for the semaphore.
    rest = tail > 0 and rest <= 65 + tail and string.byte(record, rest) == 42 and rest + 9 or rest
    local key, member = string.sub(record, rest, 65 + tail), pri .. id
    local delivery, flags, session, apart = redis.call('HGET', base .. ':x', id), 0, '', 0
    if delivery then
        check(id, 'is taken and was not ready before', state == 0)
        state, flags, apart, moment, session = 1, struct.unpack('<BBdc16', delivery)
        check(id, 'has its body in another place than its delivery says', (apart == 1) == (bytes > 512))
    end
    local timer = (state == 1 or state == 2) and moment or expires
    sizes.all = sizes.all + 1
    keys[key] = true
    if bytes > 512 then
        sizes.b = sizes.b + 1
        check(id, 'has another body', redis.call('HSTRLEN', base .. ':b', id) == bytes + 4)
    else
        check(id, 'has another body', #record == 65 + tail + bytes + 4)
    end
    if timer == NEVER then
        check(id, 'has a moment', not redis.call('ZSCORE', base .. ':w', id))
    else
        sizes.w = sizes.w + 1
        check(id, 'has another moment', tonumber(redis.call('ZSCORE', base .. ':w', id)) == timer)
    end
    if state == 0 then
        local order = subqueues and ':q' or ':r'
        local name = subqueues and struct.pack('>I2', #key) .. key .. member or member
        if redis.call('ZSCORE', base .. order, name) then
            sizes[string.sub(order, 2)] = sizes[string.sub(order, 2)] + 1
            if subqueues and (not heads[key] or member < heads[key]) then
                heads[key] = member
            end
        else
            sizes.passed = sizes.passed + 1
            check(id, 'is ready and cannot be taken', expires <= now)
        end
    elseif state == 1 then
        sizes.x = sizes.x + 1
        if subqueues then
            check(id, 'runs beside another of its sub-queue', not busy[key])
            check(id, 'leaves its sub-queue idle', redis.call('SISMEMBER', base .. ':u', key) == 1)
            busy[key] = true
        end
        if flags >= 2 then
            sizes.s = sizes.s + 1
            check(id, 'is not held by its session', redis.call('ZSCORE', base .. ':s', session .. id))
        end
    elseif state == 2 or state == 5 then
        sizes.delayed = sizes.delayed + 1
    else
        sizes.d = sizes.d + 1
        check(id, 'is not among the buried', redis.call('ZSCORE', base .. ':d', member))
    end
end

local function same(what, expected, found)
    if expected ~= found then
        wrong[#wrong + 1] = what .. ': ' .. tostring(found) .. ' instead of ' .. tostring(expected)
    end
end

local ended = redis.call('ZRANGE', base .. ':j', 0, -1, 'WITHSCORES')
for place = 1, #ended, 2 do
    local id, text = string.sub(ended[place], 1, 8), redis.call('HGET', base .. ':y', string.sub(ended[place], 9))
    check(id, 'has ended and does not hold its key', text and string.sub(text, 1, 8) == id)
end
-- Among the keys is one that makes Redis keep them as a large hash.
local marks = 0
for _, key in ipairs(redis.call('HKEYS', base .. ':y')) do
    marks = marks + (string.byte(key) == 0 and 1 or 0)
end
same('keys', holders + #ended / 2, redis.call('HLEN', base .. ':y') - marks)
-- Large bodies of done tasks stay where they were.
for _, id in ipairs(redis.call('HKEYS', base .. ':k')) do
    check(id, 'is done and unfinished', redis.call('HEXISTS', base .. ':t', id) == 0)
    sizes.b = sizes.b + redis.call('HEXISTS', base .. ':b', id)
end
same('done by their end', redis.call('HLEN', base .. ':k'), redis.call('ZCARD', base .. ':e'))
same('bodies apart', sizes.b, redis.call('HLEN', base .. ':b'))
same('taken', sizes.x, redis.call('HLEN', base .. ':x'))
same('buried', sizes.d, redis.call('ZCARD', base .. ':d'))
-- Among the deadlines is a member that is no task, after all of them.
same('moments', sizes.w, redis.call('ZCOUNT', base .. ':w', '-inf', '(+inf'))
same('held by sessions', sizes.s, redis.call('ZCARD', base .. ':s'))
local _, _, delayed = struct.unpack('<ddd', redis.call('GET', base .. ':m'))
same('delayed', sizes.delayed, delayed)
if subqueues then
    same('ready in sub-queues', sizes.q, redis.call('ZCARD', base .. ':q'))
    local idle, running = 0, 0
    for key in pairs(keys) do
        local head = not busy[key] and heads[key] or false
        idle = idle + (head and 1 or 0)
        running = running + (busy[key] and 1 or 0)
        same('the head of ' .. key, head, redis.call('HGET', base .. ':h', key))
        if head then
            same('the place of the head of ' .. key, '0', redis.call('ZSCORE', base .. ':r', head))
        end
    end
    same('busy sub-queues', running, redis.call('SCARD', base .. ':u'))
    same('heads', idle, redis.call('HLEN', base .. ':h'))
    same('heads in order', idle, redis.call('ZCARD', base .. ':r'))
else
    same('ready', sizes.r, redis.call('ZCARD', base .. ':r'))
end
return table.concat(wrong, '; ')
