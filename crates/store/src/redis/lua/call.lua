-- The way in: one call asks a tube for any number of things, one after the other.

local VERBS = { P = put, T = take, F = finish, D = delete, K = kick, E = peek, L = deliveries, N = info, A = release_all,
    S = part, U = unhear, I = tick, R = alter, X = drop, Z = truncate }

local Call = {}
Call.__index = Call

function Call:answer(text)
    self.answers[#self.answers + 1] = text
end

local function clock()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end

-- What the caller learns of the tube besides: whether it is there, this clock, how many can be taken, how much room there is
-- (less than none: no limit), the next moment, its number, whether it is plain, and whether it lost its limit.
local HEAD = '<BddddI4BB'

local function head_of(tube, now)
    if not tube or tube.dropped then
        return struct.pack(HEAD, 0, now, 0, -1, NEVER, tube and tube.options.number or 0, 0, 0)
    end
    local room = -1
    if tube.options.capacity then
        room = math.max(tube.options.capacity - total(tube), 0)
    end
    local plain = not tube.options.capacity and not tube.options.subqueues
    return struct.pack(HEAD, 1, now, takeable(tube), room, next_timer(tube), tube.options.number, plain and 1 or 0,
        tube.unlimited and 1 or 0)
end

-- The first arguments are the moment (or nothing), the epoch, and where to tell the others what (or nothing).
local function ask(keys, args)
    local base = keys[1]
    local now, epoch, channel, message = tonumber(args[1]) or clock(), tonumber(args[2]), args[3], args[4]
    local call = setmetatable({ args = args, next = 5, answers = { '' } }, Call)
    local tube = open_tube(base, now, epoch)
    while call.next <= #args do
        local header = args[call.next]
        local verb = string.sub(header, 1, 1)
        call.next = call.next + 1
        if tube and tube.dropped then
            tube = nil
        end
        if verb == 'C' then
            call:answer(tube and '\6' or '\0')
            tube = tube or create(base, now, epoch, header)
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
            redis.call('PUBLISH', channel, message)
        end
    end
    call.answers[1] = head_of(tube, now)
    return call.answers
end

redis.register_function(NAME .. '_ask', ask)
-- The same for what needs no room: it may be asked of a Redis that is full.
redis.register_function({ function_name = NAME .. '_free', callback = ask, flags = { 'allow-oom' } })
