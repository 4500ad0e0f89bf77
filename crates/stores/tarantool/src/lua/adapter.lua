-- Serves tubes of an existing tarantool/queue with the same calls as our own. The module decides; its answers are translated, and what it
-- does not support is refused. A taken task belongs to the connection that took it, so lease numbers, lease times and sessions are kept here
-- as long as that connection exists. Names of workers and errors are not kept: a delivery that failed is released or buried.

local UNSUPPORTED = 'is not supported by tarantool/queue (tarantool+queue://); use tarantool:// for it'

-- A delivery that failed ends in this way: the item has the error, and the delay unless the task is buried.
local FAIL = 4

-- Deliveries and sessions of each server, by its name.
local servers = {}

local function unsupported(what)
    return refuse('invalid', what .. ' ' .. UNSUPPORTED)
end

-- The module, by its global name.
local function the_queue()
    local queue = rawget(_G, 'queue')
    if queue == nil then
        box.error({ code = 0, reason = "tarantool/queue is not loaded: there is no global 'queue'" })
    end
    return queue
end

-- The error code while the module is not running.
local NOT_RUNNING = 20116

-- While it starts, ends or waits for other instances the module does nothing, and answers nothing.
local function is_running()
    local queue = the_queue()
    return queue.state == nil or queue.state() == 'RUNNING'
end

local function refuse_idle()
    box.error({ code = NOT_RUNNING, reason = 'tarantool/queue is not running' })
end

local function open_tube(name)
    local row = box.space._queue:get(name)
    local tube = row and the_queue().tube[name]
    if not tube then
        return nil
    end
    return { name = name, number = row[2], kind = row[4], options = row[5] or {}, space = box.space[row[3]], raw = tube,
        layout = LAYOUTS[row[4]] }
end

local function key_of(tube, id)
    return tube.name .. '\0' .. tostring(id)
end

local function seconds(span)
    return span and tonumber(span) / 1000000
end

-- Runs a method; answers its result, or the outcome of an item that it refused.
local function attempt(tube, method, ...)
    local done, answer = pcall(tube.raw[method], tube.raw, ...)
    if done and answer == nil and (method ~= 'touch' or not is_running()) then
        -- Every method returns what it did, but for a touch by 0.
        refuse_idle()
    elseif done then
        return answer
    end
    local why = tostring(answer)
    if why:find('not found') then
        return nil, { 2 }
    elseif why:find('not taken') then
        return nil, { 1 }
    end
    error(answer, 0)
end

local function notice(c, tube, count)
    if count > 0 then
        c.ready[tube.name] = (c.ready[tube.name] or 0) + count
    end
end

local commands_by_number = {}

local function with_tube(run)
    return function(c, command)
        local tube = open_tube(command[2])
        if not tube then
            return refuse('tube_not_found', command[2])
        end
        return run(c, tube, command)
    end
end

commands_by_number[0] = function(_, command)
    local name, o, if_not_exists = command[2], command[3], command[4]
    local kind = o[O.kind]
    if open_tube(name) then
        return if_not_exists and { REPLY.created, false } or refuse('tube_exists', name)
    end
    for option, what in pairs({ attempts_max = 'a limit of attempts', semaphore = 'a semaphore before a tube',
        queue_num = 'a queue number', delay = 'a usual delay', keep_done = 'keeping done tasks' }) do
        if o[O[option]] ~= nil then
            return unsupported(what)
        end
    end
    if o[O.paused] then
        return unsupported('a pause')
    elseif o[O.capacity] ~= nil and kind ~= 'limfifottl' then
        return unsupported('a capacity of a ' .. kind .. ' tube')
    end
    local capacity = given(o[O.capacity])
    -- To tarantool/queue 0 is no limit, and less than 0 means that a tube accepts nothing.
    capacity = capacity == 0 and -1 or capacity
    the_queue().create_tube(name, kind, { temporary = o[O.temporary], ttl = seconds(given(o[O.ttl])), ttr = seconds(given(o[O.ttr])),
        pri = o[O.pri], capacity = capacity, if_not_exists = true })
    return { REPLY.created, true }
end

commands_by_number[1] = function()
    return unsupported('altering a tube')
end

commands_by_number[18] = function()
    return unsupported('another name or a queue number for a tube')
end

commands_by_number[17] = function()
    return unsupported('a semaphore')
end

commands_by_number[2] = with_tube(function(_, tube)
    local done, why = pcall(tube.raw.drop, tube.raw)
    if done then
        return NOTHING
    elseif tostring(why):find('taken tasks') then
        return refuse('tube_has_taken', tube.name)
    end
    error(why, 0)
end)

-- The capacity that the options of tarantool/queue give a tube: 0 is no limit there, and with less a tube accepts nothing.
local function capacity_of(options)
    local capacity = options.capacity
    if capacity == nil or capacity == 0 then
        return NULL
    end
    -- A whole number above 2^53 is no Lua number.
    if type(capacity) == 'number' then
        capacity = math.min(math.ceil(capacity), 2 ^ 53)
    end
    return capacity > 0 and capacity or 0
end

local function info(tube)
    local stats = the_queue().statistics(tube.name)
    local tasks, calls, o = stats.tasks, {}, tube.options
    for place, call in ipairs(CALLS) do
        calls[place] = stats.calls[call] or 0
    end
    local function span(value)
        return value and value < 3153600000 and value * 1000000 or NULL
    end
    local capacity = capacity_of(o)
    local options = { tube.kind, o.pri or 0, o.temporary or false, false, false, capacity, span(o.ttl), span(o.ttr), NULL, NULL, NULL, NULL }
    return { tube.name, tube.number, options, { tasks.ready, tasks.taken, tasks.buried, tasks.delayed, tasks.done }, calls,
        tasks.ready, NULL }
end

commands_by_number[3] = function(_, command)
    local name, shown = given(command[2]), {}
    if name then
        local tube = open_tube(name)
        return tube and { REPLY.tubes, { info(tube) } } or refuse('tube_not_found', name)
    end
    for _, row in box.space._queue:pairs() do
        local tube = LAYOUTS[row[4]] and open_tube(row[1])
        if tube then
            shown[#shown + 1] = info(tube)
        end
    end
    table.sort(shown, function(a, b) return a[1] < b[1] end)
    return { REPLY.tubes, shown }
end

commands_by_number[4] = with_tube(function(c, tube, command)
    local placed, ready = {}, 0
    local payloads = {}
    for place, new in ipairs(command[3]) do
        if type(new[1]) == 'table' then
            return unsupported('the meta of a task')
        elseif new[8] ~= nil then
            return refuse('no_semaphore', tube.name)
        end
        -- A payload that cannot be decoded is refused before the first is put.
        payloads[place] = { msgpack.decode(text(new[1])) }
    end
    for place, new in ipairs(command[3]) do
        local at, delay = moment(new[6]), seconds(given(new[5]))
        if at then
            delay = math.max(at - c.now, 0) / 1000000
        end
        local done, task = pcall(tube.raw.put, tube.raw, payloads[place][1], { pri = given(new[2]), ttl = seconds(given(new[3])),
            ttr = seconds(given(new[4])), delay = delay, utube = given(new[7]) })
        if not done or task == nil then
            -- All or none: removes those that were put already.
            for _, there in ipairs(placed) do
                pcall(tube.raw.delete, tube.raw, there[1])
            end
            if not done then
                error(task, 0)
            elseif not is_running() then
                refuse_idle()
            end
            return refuse('tube_full', tube.name, given(capacity_of(tube.options)) or 0)
        end
        placed[place] = { task[1], STATES[task[2]] }
        ready = ready + (task[2] == 'r' and 1 or 0)
    end
    notice(c, tube, ready)
    return { REPLY.put, placed }
end)

commands_by_number[5] = with_tube(function(c, tube, command)
    local count, lease, session, taken, bytes = tonumber(command[3]), number(command[5]), text(given(command[6])), {}, 0
    if session and not c.holder.sessions[session] then
        return refuse('session_unknown', session)
    end
    while #taken < count and bytes < BATCH_BYTES_MAX do
        local done, task = pcall(tube.raw.take, tube.raw, 0)
        if not done and #taken == 0 then
            error(task, 0)
        elseif not done or task == nil then
            -- Taken tasks are answered, whatever happened to the rest.
            break
        end
        local delivery = { lease = c.lease, start = c.now, ending = lease and later(c.now, lease) or NEVER, session = session, tube = tube.name,
            id = task[1] }
        c.lease = c.lease + 1
        c.holder.deliveries[key_of(tube, task[1])] = delivery
        local seen = view(tube, tuple_of(tube, task[1]), TAKEN, delivery, true)
        bytes = bytes + #seen[BODY]
        taken[#taken + 1] = seen
    end
    if #taken == 0 and not is_running() then
        refuse_idle()
    end
    c.bytes = c.bytes + bytes
    return { REPLY.taken, taken }
end)

-- Whether this server has the delivery, and the caller holds it.
local function is_held(c, delivery, holder)
    if not delivery or delivery.ending <= c.now then
        return false
    elseif holder == nil then
        return true
    elseif type(holder) == 'string' then
        return delivery.session == holder
    end
    return delivery.lease == holder
end

local function finish_one(c, tube, item, show)
    local id, verb, holder = item[1], item[2], text(item[3])
    local key = key_of(tube, id)
    local delivery, before = c.holder.deliveries[key], tuple_of(tube, id)
    if not before then
        return { 2 }
    end
    local delay = verb == RELEASE and item[4] or verb == FAIL and given(item[5]) or nil
    if verb == FAIL then
        verb = delay and RELEASE or BURY
    end
    if not is_held(c, delivery, holder) and not (verb == BURY and holder == nil) then
        return { 1 }
    end
    local answer, outcome
    if verb == ACK then
        answer, outcome = attempt(tube, 'ack', id)
    elseif verb == RELEASE then
        answer, outcome = attempt(tube, 'release', id, { delay = seconds(delay) })
    elseif verb == BURY then
        answer, outcome = attempt(tube, 'bury', id)
    elseif tube.layout.ttr then
        answer, outcome = attempt(tube, 'touch', id, seconds(item[4]))
        delivery.ending = later(delivery.ending, tonumber(item[4]))
    else
        delivery.ending = later(delivery.ending, tonumber(item[4]))
    end
    if outcome then
        c.holder.deliveries[key] = nil
        return outcome
    end
    local state = verb == TOUCH and TAKEN or answer and STATES[answer[2]] or READY
    if verb ~= TOUCH then
        c.holder.deliveries[key] = nil
        notice(c, tube, state == READY and 1 or 0)
    end
    local after = verb == ACK and before or tuple_of(tube, id) or before
    return { 0, show and view(tube, after, state, (verb == ACK or verb == TOUCH) and delivery or nil, true) or nil }
end

commands_by_number[6] = with_tube(function(c, tube, command)
    local outcomes = {}
    for place, item in ipairs(command[3]) do
        outcomes[place] = finish_one(c, tube, item, command[4])
    end
    return { REPLY.finished, outcomes }
end)

commands_by_number[7] = with_tube(function(c, tube, command)
    -- For more than are buried, version 1.5.0 leaves the transaction of a tube with sub-queues open.
    local buried = the_queue().statistics(tube.name).tasks.buried
    local kicked = tube.raw:kick(math.min(tonumber(command[3]), buried))
    if kicked == nil then
        refuse_idle()
    end
    notice(c, tube, kicked)
    return { REPLY.kicked, kicked }
end)

commands_by_number[20] = function()
    return unsupported('kicking tasks by id')
end

commands_by_number[22] = function()
    return unsupported('the position of a task in the queue')
end

commands_by_number[8] = with_tube(function(c, tube, command)
    local outcomes = {}
    for place, id in ipairs(command[3]) do
        local before, delivery = tuple_of(tube, id), c.holder.deliveries[key_of(tube, id)]
        local _, outcome = attempt(tube, 'delete', id)
        c.holder.deliveries[key_of(tube, id)] = nil
        outcomes[place] = outcome or { 0, command[4] and view(tube, before, DONE, delivery, true) or nil }
    end
    return { REPLY.finished, outcomes }
end)

commands_by_number[9] = with_tube(function(c, tube, command)
    local shown, bytes = {}, 0
    for _, id in ipairs(command[3]) do
        local task = tuple_of(tube, id)
        if task then
            local seen = view(tube, task, STATES[task[2]], c.holder.deliveries[key_of(tube, id)], true)
            shown[#shown + 1], bytes = seen, bytes + #seen[BODY]
            if bytes > BATCH_BYTES_MAX then
                return refuse('too_large', 'the size of the tasks to show, in bytes,', bytes, BATCH_BYTES_MAX, 'ask for fewer at a time')
            end
        end
    end
    c.bytes = c.bytes + bytes
    return { REPLY.tasks, shown }
end)

-- A search shows all tasks that it would have to compare.
commands_by_number[23] = with_tube(function(c, tube, command)
    local ids, first = {}, tonumber(command[3])
    for place = 1, tonumber(command[4]) do
        ids[place] = first + place - 1
    end
    local peeked = commands_by_number[9](c, { 9, command[2], ids })
    if peeked[1] ~= REPLY.tasks then
        return peeked
    end
    local shown, ranks, bytes = {}, {}, 0
    for _, seen in ipairs(peeked[2]) do
        if bit.band(tonumber(command[5]), bit.lshift(1, seen[STATE])) ~= 0 then
            shown[#shown + 1], ranks[#ranks + 1], bytes = seen, #ranks + 1, bytes + #seen[BODY]
        end
    end
    return { REPLY.found, shown, ranks, #shown, #shown > 0 and shown[#shown][ID] or NULL, bytes }
end)

-- Only deliveries of this server are known.
commands_by_number[10] = with_tube(function(c, tube, command)
    local shown = {}
    for _, delivery in pairs(c.holder.deliveries) do
        local task = delivery.tube == tube.name and tuple_of(tube, delivery.id)
        if task then
            shown[#shown + 1] = view(tube, task, TAKEN, delivery, false)
        end
    end
    table.sort(shown, function(a, b) return a[1] < b[1] end)
    for place = #shown, tonumber(command[3]) + 1, -1 do
        shown[place] = nil
    end
    return { REPLY.tasks, shown }
end)

commands_by_number[LIST] = with_tube(function(c, tube, command)
    local limit, states, pri, id = tonumber(command[3]), number(command[4]), given(command[5]), given(command[6])
    if states then
        return { REPLY.listed, list_by_id(c, tube, states, id, limit) }
    elseif not tube.layout then
        return unsupported('a list in the order of takes of a ' .. tube.kind .. ' tube')
    end
    return { REPLY.listed, list_in_queue(c, tube, pri, id, limit) }
end)

commands_by_number[11] = with_tube(function(_, tube)
    if not is_running() then
        refuse_idle()
    end
    tube.raw:truncate()
    return NOTHING
end)

commands_by_number[12] = with_tube(function(c, tube)
    if not is_running() then
        refuse_idle()
    end
    tube.raw:release_all()
    notice(c, tube, 1)
    return NOTHING
end)

-- Gives back deliveries that are over: of a session, or beyond their time. Answers how many.
local function give_back(c, is_over)
    local count = 0
    for key, delivery in pairs(c.holder.deliveries) do
        if is_over(delivery) then
            local tube = open_tube(delivery.tube)
            if tube then
                attempt(tube, 'release', delivery.id)
                notice(c, tube, 1)
            end
            c.holder.deliveries[key] = nil
            count = count + 1
        end
    end
    return count
end

commands_by_number[13] = function(c, command)
    local session = text(command[2])
    if not c.holder.sessions[session] and not command[3] then
        return refuse('session_unknown', session)
    end
    c.holder.sessions[session] = (c.holder.sessions[session] or 0) + 1
    return { REPLY.session, session }
end

commands_by_number[14] = function(c, command)
    local session = text(command[2])
    local count = c.holder.sessions[session]
    if not count then
        return refuse('session_unknown', session)
    end
    if count == 1 then
        give_back(c, function(delivery) return delivery.session == session end)
    end
    c.holder.sessions[session] = count > 1 and count - 1 or nil
    return NOTHING
end

commands_by_number[15] = function(_, command)
    if tonumber(command[2]) > 0 then
        return unsupported('a time for sessions without connections')
    end
    return NOTHING
end

commands_by_number[16] = function(c)
    return { REPLY.ticked, give_back(c, function(delivery) return delivery.ending <= c.now end) }
end

local api = {}

function api.begin()
    the_queue()
    return { FORMAT, box.cfg.wal_mode, _TARANTOOL, box.info.ro }
end

api.probe = api.begin

function api.heartbeat()
    return { 0, 0, false }
end

-- Writes the unchanged row of a tube to the log, if there is a tube and the user may write it.
function api.check_write()
    if box.info.ro then
        box.error(box.error.READONLY)
    elseif not is_running() then
        refuse_idle()
    end
    local row = box.space._queue:pairs():nth(1)
    if row then
        local done, why = pcall(box.space._queue.replace, box.space._queue, row)
        if not done and why.code ~= box.error.ACCESS_DENIED then
            error(why, 0)
        end
    end
    return true
end

-- All tubes, as a batch answers.
function api.export_tubes()
    return { { commands_by_number[3](nil, { 3 }) }, 0, NULL, {}, {}, false }
end

-- The next id of each tube. The module has no lease numbers.
function api.export_numbers()
    local ids = {}
    for _, row in box.space._queue:pairs() do
        local last = LAYOUTS[row[4]] and box.space[row[3]].index[0]:max()
        ids[#ids + 1] = { row[2], last and last[1] + 1 or 0, NULL, NULL }
    end
    return { ids, 0 }
end

-- Tasks of a tube by id, in our layout. Taken tasks are ready; attempts are not known.
function api.export_tasks(of, from, count, bytes_max)
    local row, tasks, size, bytes = box.space._queue.index.tube_id:get(of), {}, 0, 0
    local tube = row and open_tube(row[1])
    if not tube then
        return { tasks, NULL }
    end
    for _, task in tube.space:pairs({ from }, { iterator = 'GE' }) do
        if size >= count or bytes >= bytes_max then
            break
        end
        local state = STATES[task[2]]
        local shown = view(tube, task, state == TAKEN and READY or state, nil, true)
        bytes, size = bytes + #shown[BODY], size + 1
        shown[OWN], shown[TUBE], shown[BYTES], shown[PARTS], shown[FLAG] = NULL, of, #shown[BODY], 0, PLAIN
        tasks[2 * size - 1], tasks[2 * size] = shown, NULL
    end
    return { tasks, NULL }
end

function api.export_semaphores()
    return {}
end

api['end'] = function(server)
    servers[server] = nil
    return {}
end

local function holder_of(server)
    local holder = servers[server]
    if not holder then
        -- Killed servers do not end in order.
        for name, other in pairs(servers) do
            if not box.session.exists(other.connection) then
                servers[name] = nil
            end
        end
        holder = { deliveries = {}, sessions = {}, last = 0 }
        servers[server] = holder
    end
    if holder.connection ~= box.session.id() then
        holder.connection, holder.deliveries = box.session.id(), {}
    end
    holder.turn = holder.turn or fiber.channel(1)
    return holder
end

-- Tasks of a closed connection are given back by the module; on an open one deliveries whose replies were lost are given back.
function api.resync(server, _, _, sessions, lost)
    local holder = holder_of(server)
    holder.sessions = {}
    for _, row in ipairs(sessions) do
        holder.sessions[text(row[1])] = row[2]
    end
    give_back({ holder = holder, ready = {} }, function(delivery)
        for _, range in ipairs(lost) do
            if delivery.lease >= range[2] and delivery.lease <= range[3] then
                return true
            end
        end
        return false
    end)
    return {}
end

local last_lease = 0

function api.leases(size)
    local first = math.max(last_lease, micros())
    last_lease = first + size
    return first
end

function api.watch(_, _, wait)
    fiber.sleep(wait)
    return { 0, {}, false, false }
end

-- Runs commands until the answer is full, or the module stops running; then answers also that error.
local function run(c, commands)
    local replies = {}
    for place, command in ipairs(commands) do
        if c.bytes > REPLY_BYTES_MAX then
            break
        end
        local done, reply = pcall(commands_by_number[command[1]], c, command)
        if not done and type(reply) == 'cdata' and reply.code == NOT_RUNNING then
            return replies, reply
        end
        replies[place] = done and reply or refuse('invalid', 'tarantool/queue: ' .. tostring(reply))
    end
    return replies
end

-- Commands run one after the other; each of the module's methods is a transaction of its own.
function api.batch(server, call, now, lease, commands, _, together)
    if box.info.ro then
        box.error(box.error.READONLY)
    end
    local holder = holder_of(server)
    local c = { now = moment(now) or micros(), lease = tonumber(lease), holder = holder, ready = {}, bytes = 0 }
    holder.turn:put(true)
    if call <= holder.last then
        holder.turn:get()
        return {}
    end
    local replies, idle = run(c, commands)
    if #replies < #commands then
        -- Calls that were sent with this one must not run before the rest of it.
        holder.last = together
    end
    holder.turn:get()
    if idle and #replies == 0 then
        error(idle, 0)
    end
    local ready, next_at = {}, NEVER
    for name, count in pairs(c.ready) do
        ready[#ready + 1] = { name, count }
    end
    for _, delivery in pairs(holder.deliveries) do
        next_at = math.min(next_at, delivery.ending)
    end
    return { replies, c.now, next_at < NEVER and next_at or NULL, ready, {}, false }
end

return api
