-- Runs the commands of one call to a tube, one after the other.

local VERBS = { P = verbs.put, T = verbs.take, F = verbs.finish, G = verbs.ack, D = verbs.delete, K = verbs.kick,
    H = verbs.kick_tasks, E = verbs.peek, L = verbs.deliveries, Q = verbs.list, O = verbs.positions, N = info, A = verbs.release_all, S = verbs.end_session,
    U = verbs.undo_unacknowledged, I = verbs.tick, R = verbs.alter, M = verbs.rename, X = verbs.drop, Z = verbs.truncate }
-- The commands of a plain tube's fast path.
local FAST = { P = true, T = true, G = true }

local Call = {}
Call.__index = Call

function Call:answer(text)
    self.answers[#self.answers + 1] = text
end

local last_base, last_prefix

-- The prefix of all keys, from the prefix of a tube's keys.
local function prefix_of(base)
    if base ~= last_base then
        last_base, last_prefix = base, string.match(base, '^{([^:]*):')
    end
    return last_prefix
end

-- The first arguments are the moment (or nothing), the epoch, the channel for notices (or nothing) and the server that calls.
local function new_call(base, args, single)
    local call = { args = args, next = 6, answers = { '' }, now = tonumber(args[1]) or clock(), epoch = tonumber(args[2]),
        channel = args[3], server = args[4], prefix = prefix_of(base), single = single, tubes = {},
        semaphores = {}, wanted = 0 }
    return setmetatable(call, Call)
end

local function publish(call, name)
    if call.channel ~= '' then
        redis.call('PUBLISH', call.channel, call.server .. ':' .. name)
    end
end

-- Writes the changes of a tube.
local function close_tube(call, tube)
    flush(tube)
    keyring.flush(tube)
    write_numbers(tube)
    if tube.notify then
        publish(call, tube.options.name)
    end
end

-- Writes the changes of other tubes and of semaphores. Their states are the last answer.
local function end_call(call, own, own_key)
    local others = {}
    for _, tube in pairs(call.tubes) do
        if tube ~= own and not tube.dropped then
            close_tube(call, tube)
            others[#others + 1] = struct.pack('<BI2c0dd', 0, #tube.options.name, tube.options.name, takeable(tube),
                next_timer(tube))
        end
    end
    for key, s in pairs(call.semaphores) do
        if s then
            sem.close(s)
            if s.notify then
                publish(call, '/' .. key)
            end
        end
        if s and key ~= own_key then
            others[#others + 1] = struct.pack('<BI2c0ddBI4', 1, #key, key, sem.next_moment(s), outbox.next_moment(s),
                s.notify and 1 or 0, s.number)
        end
    end
    if #others > 0 then
        call:answer(table.concat(others))
    end
end

-- Reads what several commands of a call need in one step.
local function prefetch(tube, call)
    local args, place, ids, acked = call.args, call.next, {}, {}
    while place <= #args do
        local header = args[place]
        local verb = string.sub(header, 1, 1)
        place = place + 1
        if verb == 'P' then
            place = place + struct.unpack('<I4', header, 2)
        elseif verb == 'T' then
            call.wanted = call.wanted + struct.unpack('<I4', header, 2)
        elseif verb == 'F' then
            for from = 7, 6 + struct.unpack('<I4', header, 3) * ITEM_BYTES, ITEM_BYTES do
                ids[#ids + 1] = string.sub(header, from, from + 7)
            end
        elseif verb == 'G' then
            local acks = read_acks(header)
            call.acks = call.acks or {}
            call.acks[header] = acks
            for _, id in ipairs(acks.ids) do
                acked[#acked + 1] = id
            end
        end
    end
    if not tube.options.plain then
        load(tube, ids)
        load(tube, acked)
    elseif #acked > 0 then
        plain.load(tube, acked)
    end
end

-- The state of the tube for the caller: whether it exists (or another has its tag), this clock, how many tasks can be taken, how many more
-- it may hold (negative: no limit), the next deadline, its number, whether it has a semaphore (1) or is plain (2) and whether it has a rate
-- limit (4), whether it lost its capacity (1) and whether keys were freed before their time (2), when done tasks or keys are to be removed,
-- and how many keys were freed, if any.
local HEAD = '<BddddI4BBd'

local function head_of(tube, now, other)
    if not tube or tube.dropped then
        return struct.pack(HEAD, other and 2 or 0, now, 0, -1, NEVER, tube and tube.options.number or 0, 0, 0, NEVER)
    end
    local room = -1
    if tube.options.capacity then
        room = math.max(tube.options.capacity - total(tube), 0)
    end
    local o = tube.options
    local kind = (o.plain and 2 or o.semaphore ~= '' and 1 or 0) + (o.rate and 4 or 0)
    local removal = o.has_done and done_tasks.due(tube) or NEVER
    if o.ended_keys then
        removal = math.min(removal, keyring.due(tube))
    end
    local freed = tube.freed_early or 0
    local rare = (tube.unlimited and 1 or 0) + (freed > 0 and 2 or 0)
    return struct.pack(HEAD, 1, now, takeable(tube), room, next_timer(tube), o.number, kind, rare, removal)
        .. (freed > 0 and struct.pack('<d', freed) or '')
end

-- After the first arguments comes the name of the tube (or nothing: then the name is answered), then the commands.
local function run_call(keys, args)
    local base, name = keys[1], args[5]
    local call = new_call(base, args, true)
    local now = call.now
    local tube, other = open_tube(call, base, name)
    if tube and #args > call.next then
        prefetch(tube, call)
    end
    while call.next <= #args do
        local header = args[call.next]
        local verb = string.sub(header, 1, 1)
        call.next = call.next + 1
        if tube and tube.dropped then
            tube = nil
        end
        if verb == 'C' then
            local refused = tube and '\6' or other and '\11' or refuse_create(call, header)
            call:answer(refused or '\0')
            tube = tube or not refused and create(call, base, header) or nil
        elseif tube then
            if not FAST[verb] then
                plain.leave(tube)
            end
            VERBS[verb](tube, header, call)
        else
            if verb == 'P' then
                call.next = call.next + struct.unpack('<I4', header, 2)
            end
            call:answer('\1')
        end
    end
    if tube and not tube.dropped then
        close_tube(call, tube)
    end
    if next(call.tubes) or next(call.semaphores) then
        end_call(call, tube)
    end
    call.answers[1] = head_of(tube, now, other) .. (name == '' and tube and tube.options.name or '')
    return call.answers
end

redis.register_function(NAME .. '_grow', run_call)
-- The same for commands that need no memory: they also run when Redis is full.
redis.register_function({ function_name = NAME .. '_call', callback = run_call, flags = { 'allow-oom' } })
