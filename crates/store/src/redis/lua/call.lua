-- The way in: one call asks a tube for any number of things, one after the other.

local VERBS = { P = put, T = take, F = finish, D = delete, K = kick, E = peek, L = deliveries, N = info, A = release_all,
    S = part, U = unhear, I = tick, R = alter, M = name_tube, X = drop,
    Z = truncate }

local Call = {}
Call.__index = Call

function Call:answer(text)
    self.answers[#self.answers + 1] = text
end

-- What the caller learns of the tube besides: whether it is there (or another is), this clock, how many can be taken, how much room there is
-- (less than none: no limit), the next moment, its number, whether it is plain, and whether it lost its limit.
local HEAD = '<BddddI4BB'

local function head_of(tube, now, other)
    if not tube or tube.dropped then
        return struct.pack(HEAD, other and 2 or 0, now, 0, -1, NEVER, tube and tube.options.number or 0, 0, 0)
    end
    local room = -1
    if tube.options.capacity then
        room = math.max(tube.options.capacity - total(tube), 0)
    end
    local plain = not tube.options.capacity and not tube.options.subqueues
    return struct.pack(HEAD, 1, now, takeable(tube), room, next_timer(tube), tube.options.number, plain and 1 or 0,
        tube.unlimited and 1 or 0)
end

-- The first arguments are the moment (or nothing), the epoch, where to tell the others (or nothing) and who tells them, and
-- what the tube is called (or nothing: then that is answered).
local function ask(keys, args)
    local base = keys[1]
    local now, epoch, channel, server, name = tonumber(args[1]) or clock(), tonumber(args[2]), args[3], args[4], args[5]
    local call = setmetatable({ args = args, next = 6, answers = { '' } }, Call)
    local tube, other = open_tube(base, now, epoch, name)
    while call.next <= #args do
        local header = args[call.next]
        local verb = string.sub(header, 1, 1)
        call.next = call.next + 1
        if tube and tube.dropped then
            tube = nil
        end
        if verb == 'C' then
            local refused = tube and '\6' or other and '\11' or clock() > struct.unpack('<d', header, 2) and '\12'
            call:answer(refused or '\0')
            tube = tube or not refused and create(base, now, epoch, header) or nil
        elseif tube then
            VERBS[verb](tube, header, call)
        else
            if verb == 'P' then
                call.next = call.next + struct.unpack('<I4', header, 2)
            end
            call:answer('\1')
        end
    end
    if tube and not tube.dropped then
        flush(tube)
        write_numbers(tube)
        if channel ~= '' and tube.news then
            redis.call('PUBLISH', channel, server .. ':' .. tube.options.name)
        end
    end
    call.answers[1] = head_of(tube, now, other) .. (name == '' and tube and tube.options.name or '')
    return call.answers
end

redis.register_function(NAME .. '_ask', ask)
-- The same for what needs no room: it may be asked of a Redis that is full.
redis.register_function({ function_name = NAME .. '_free', callback = ask, flags = { 'allow-oom' } })
