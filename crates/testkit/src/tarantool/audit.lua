-- Compares the spaces of a store with each other, and returns the differences as text.
local wrong = {}

local function of(name)
    return box.space[PREFIX .. '_' .. name]
end

local function check(is, what, ...)
    if not is and #wrong < 20 then
        wrong[#wrong + 1] = string.format(what, ...)
    end
end

local NEVER = 9223372036854775807ULL
local counted, sizes = {}, { ready = 0, line = 0, taken = 0, delayed = 0, buried = 0, gated = 0, expiry = 0, held = 0, body = 0 }
local subqueues = {}

local function count(tube, what)
    counted[tube] = counted[tube] or { ready = 0, taken = 0, buried = 0, delayed = 0 }
    counted[tube][what] = counted[tube][what] + 1
end

local function order(space, key, id)
    check(of(space):get(key) ~= nil, 'task %s is not in %s', tostring(id), space)
    sizes[space] = sizes[space] + 1
end

local GATED_TASKS, IDS = 9223372036854775808ULL, 562949953421312ULL

-- Where a task stands in the semaphore of its tube: exactly while it is worked on, ready, or would be with a grant.
local function check_gate(key, tube, id, stands, holds)
    local semaphore = of('semaphore').index[1]:get(key)
    local place = of('place'):get({ semaphore[1], GATED_TASKS + IDS * tube + id })
    check((place ~= nil) == stands, 'task %s stands %sin %s', tostring(id), place and '' or 'not ', key)
    if place and holds ~= nil then
        check((place[7] ~= nil) == holds, 'task %s and %s do not agree', tostring(id), key)
    end
end

for _, task in of('task'):pairs() do
    local id, tube, pri, expires, key = task[1], task[15], task[3], task[5], task[13]
    local row = of('tube'):get(tube)
    check(row ~= nil, 'task %s has no tube', tostring(id))
    check(row[4] > id, 'task %s is beyond the next id', tostring(id))
    local is_utube = row[3][1]:match('^utube') ~= nil
    local delivery = of('taken'):get({ tube, id })
    sizes.body = sizes.body + task[17]
    if is_utube then
        local name = tube .. ':' .. key
        subqueues[name] = subqueues[name] or { tube = tube, key = key, running = 0 }
        subqueues[name].running = subqueues[name].running + (delivery and 1 or 0)
    end
    if delivery then
        count(tube, 'taken')
        sizes.taken = sizes.taken + 1
        if delivery[4] ~= nil then
            order('held', { delivery[4], tube, id }, id)
            check(of('session'):get(delivery[4]) ~= nil, 'task %s is held by an unknown session', tostring(id))
        end
    elseif task[2] == 0 then
        count(tube, 'ready')
        if is_utube then
            sizes.line = sizes.line + (of('line'):get({ tube, key, pri, id }) and 1 or 0)
        else
            sizes.ready = sizes.ready + (of('ready'):get({ tube, pri, id }) and 1 or 0)
        end
    elseif task[2] == 3 then
        count(tube, 'buried')
        order('buried', { tube, pri, id }, id)
    elseif task[18] == 2 then
        count(tube, 'delayed')
        order('gated', { tube, id }, id)
    else
        count(tube, 'delayed')
        order('delayed', { tube, task[12], id }, id)
    end
    if row[3][11] ~= nil then
        local is_gated = task[2] == 2 and task[18] == 2
        local is_ready = not delivery and task[2] == 0
        local holds
        if not delivery then
            holds = is_ready
        end
        check_gate(row[3][11], tube, id, delivery ~= nil or is_ready or is_gated, holds)
    end
    if not delivery and not (task[2] == 2 and task[18] ~= 2) and expires < NEVER then
        order('expiry', { tube, expires, id }, id)
    end
end

-- Parts of the bodies of done tasks stay where they were.
if of('done') ~= nil then
    for _, done in of('done'):pairs() do
        check(of('task'):get({ done[1], done[2] }) == nil, 'task %s is done and unfinished', tostring(done[2]))
        sizes.body = sizes.body + done[5]
    end
end

-- Each key has a holder, an unfinished task or an ended one, and each of them has its key.
if of('key') ~= nil then
    local unfinished, ended = 0, {}
    for _, task in of('task'):pairs() do
        if task[20] ~= nil then
            unfinished = unfinished + 1
            local row = of('key'):get({ task[15], task[20] })
            check(row ~= nil and row[3] == task[1], 'task %s does not hold its key', tostring(task[1]))
        end
    end
    for _, row in of('ended'):pairs() do
        ended[row[1]] = (ended[row[1]] or 0) + 1
        local held = of('key'):get({ row[1], row[4] })
        check(held ~= nil and held[3] == row[2], 'ended task %s does not hold its key', tostring(row[2]))
        check(of('task'):get({ row[1], row[2] }) == nil, 'task %s has ended and is unfinished', tostring(row[2]))
    end
    check(of('key'):len() == unfinished + of('ended'):len(), '%d keys, %d of unfinished tasks', of('key'):len(), unfinished)
    for _, tube in of('tube'):pairs() do
        local row = of('ended_count'):get(tube[1])
        local is_counted = of('live'):get(tube[1]) ~= nil
        check(not is_counted or (row and row[3]) == ended[tube[1]], 'tube %s counts %s ended keys', tube[2], tostring(row and row[3]))
    end
end

for _, subqueue in pairs(subqueues) do
    local row = of('subqueue'):get({ subqueue.tube, subqueue.key })
    local first = of('line'):select({ subqueue.tube, subqueue.key }, { limit = 1 })[1]
    check((row and row[3] or 0) == subqueue.running, 'sub-queue %s runs %d', subqueue.key, subqueue.running)
    check(subqueue.running <= 1, 'sub-queue %s runs twice', subqueue.key)
    local head = subqueue.running == 0 and first and first[4] or nil
    check((row and row[5] or nil) == head, 'sub-queue %s has another head', subqueue.key)
    if head then
        order('ready', { subqueue.tube, first[3], head }, head)
    end
end

for name, size in pairs(sizes) do
    check(of(name):len() == size, '%s has %d rows, not %d', name, of(name):len(), size)
end

for _, tube in of('tube'):pairs() do
    local live, n = of('live'):get(tube[1]), counted[tube[1]] or { ready = 0, taken = 0, buried = 0, delayed = 0 }
    if live then
        check(live[3] == n.ready and live[4] == n.taken and live[5] == n.buried and live[6] == n.delayed,
            'tube %s counts %s', tube[2], require('json').encode(live))
        -- What changes nothing must not have to write this anew.
        local next_at = NEVER
        for _, order in ipairs({ of('taken').index[1], of('delayed'), of('expiry') }) do
            local first = order:select({ tube[1] }, { limit = 1 })[1]
            next_at = first and first[2] < next_at and first[2] or next_at
        end
        -- A rate limit may allow the next delivery earlier.
        check(live[2] == next_at or tube[3][16] ~= nil and live[2] < next_at, 'tube %s wakes at %s, not at %s', tube[2], tostring(live[2]), tostring(next_at))
        check(live[7] == of('ready'):count({ tube[1] }), 'tube %s can take %d', tube[2], live[7])
    end
end

-- Semaphores: counts, capacity, and that each grant is held once.
for _, s in of('semaphore'):pairs() do
    local n = { [0] = 0, 0, 0, 0, 0 }
    for _, place in of('place'):pairs({ s[1] }) do
        n[place[3]] = n[place[3]] + 1
        check((place[3] >= 2) == (place[7] ~= nil), 'a place of %s has no grant', s[2])
        if place[2] >= GATED_TASKS then
            local at = place[2] - GATED_TASKS
            check(of('task'):get({ at / IDS, at % IDS }) ~= nil, 'a task that is gone stands in %s', s[2])
        end
    end
    check(s[7] == n[0] and s[8] == n[1] and s[9] == n[2] and s[11] == n[3] and s[10] == n[4], 'semaphore %s counts wrong', s[2])
    check(s[12] == of('event').index[2]:count({ s[1] }), 'semaphore %s counts its events wrong', s[2])
    check(n[0] == 0 or n[2] + n[3] + n[4] >= s[3][1] or s[5] < NEVER, 'semaphore %s has free places and waiting tasks', s[2])
end
return wrong
