-- What is about all tubes, under a hash tag of its own (names of tubes are in names.lua): s sessions, e when those without
-- connections end, c:SERVER connections at a server, t:SESSION homes of tubes it took from, v servers by their last heartbeat, p the heartbeat before that of each server, life in which life
-- of Redis numbers were given and heartbeats heard, and since when, ttr, epoch, lease, number, and format: the version of all this.

-- Connections in all, and when it ends if none comes back (less than nothing: one is there).
local SESSION = '<dd'
local NO_END = -1

local OK, UNKNOWN, STALE, ENDING = 0, 2, 9, 10

local function session_of(base, id)
    local raw = redis.call('HGET', base .. ':s', id)
    if raw then
        local connections, ends = struct.unpack(SESSION, raw)
        return { connections = connections, ends = ends }
    end
end

local function lives(session, now)
    return session and (session.ends < 0 or session.ends > now)
end

local function set_session(base, id, session)
    redis.call('HSET', base .. ':s', id, struct.pack(SESSION, session.connections, session.ends))
    if session.ends >= 0 and session.ends < NEVER then
        redis.call('ZADD', base .. ':e', session.ends, id)
    else
        redis.call('ZREM', base .. ':e', id)
    end
end

local function session_ttr(base)
    return tonumber(redis.call('GET', base .. ':ttr') or 0)
end

-- Says how many connections of a session are at a server. A session without any ends when its time has passed.
local function set_connections(base, server, id, session, connections, now)
    local key = base .. ':c:' .. server
    local before = tonumber(redis.call('HGET', key, id) or 0)
    session.connections = session.connections + connections - before
    if connections > 0 then
        redis.call('HSET', key, id, connections)
    else
        redis.call('HDEL', key, id)
    end
    if session.connections > 0 then
        session.ends = NO_END
    elseif session.ends < 0 then
        session.ends = later(now, session_ttr(base))
    end
    set_session(base, id, session)
end

-- Ends the part that a server had in all sessions but these.
local function part_sessions(base, server, kept, now)
    for _, id in ipairs(redis.call('HKEYS', base .. ':c:' .. server)) do
        local session = session_of(base, id)
        if not session then
            redis.call('HDEL', base .. ':c:' .. server, id)
        elseif not kept[id] then
            set_connections(base, server, id, session, 0, now)
        end
    end
end

local function forget_server(base, server, now)
    part_sessions(base, server, {}, now)
    redis.call('ZREM', base .. ':v', server)
    redis.call('HDEL', base .. ':p', server)
    redis.call('DEL', base .. ':c:' .. server)
end

-- How long servers have to find a Redis that was away: as long as opening a connection may take.
local TIME_TO_RETURN = 5000000

-- Since when heartbeats have been coming without a gap. A Redis that has just begun, has taken over from another or was away for all heard
-- nobody meanwhile, and its clock may not be the one by which the last of them came.
local function heard_since(base, moment, patience)
    local known = redis.call('HMGET', base .. ':life', 'servers', 'since')
    local latest = redis.call('ZREVRANGE', base .. ':v', 0, 0, 'WITHSCORES')[2]
    if known[1] == life.mark() and latest and tonumber(latest) > moment - patience then
        return tonumber(known[2])
    end
    for _, server in ipairs(redis.call('ZRANGEBYSCORE', base .. ':v', '(' .. string.format('%.0f', moment), '+inf')) do
        redis.call('ZADD', base .. ':v', moment, server)
    end
    redis.call('HSET', base .. ':life', 'servers', life.mark(), 'since', string.format('%.0f', moment))
    return moment
end

local function epoch_of(base)
    return tonumber(redis.call('GET', base .. ':epoch') or 0)
end

-- An epoch that somebody knows of is not forgotten here.
local function raise_epoch(base, epoch)
    if epoch > epoch_of(base) then
        redis.call('SET', base .. ':epoch', string.format('%.0f', epoch))
    end
end

-- All servers are gone, and with them all sessions. Each tube is put in order by the next call to it.
local function begin_epoch(base)
    for _, server in ipairs(redis.call('ZRANGE', base .. ':v', 0, -1)) do
        redis.call('DEL', base .. ':c:' .. server)
    end
    for _, id in ipairs(redis.call('HKEYS', base .. ':s')) do
        redis.call('DEL', base .. ':t:' .. id)
    end
    redis.call('DEL', base .. ':v', base .. ':p', base .. ':s', base .. ':e', base .. ':ttr')
    -- At the clock, so that tubes have never heard of it, also when the last one was lost here.
    raise_epoch(base, math.max(epoch_of(base) + 1, clock()))
end

-- Only if all ended in good order. Whoever is listed and silent may be alive: perhaps it was Redis that was away.
local function begin_if_alone(base)
    if redis.call('ZCARD', base .. ':v') == 0 then
        begin_epoch(base)
    end
end

local registry = {}

-- A server begins, unless what is kept here is of a later version than it knows. When no other lives, what the last ones
-- left behind is put in order.
function registry.begin(base, _, server, patience, format)
    local found = tonumber(redis.call('GET', base .. ':format') or 0)
    if found > tonumber(format) then
        return { 0, found }
    end
    redis.call('SET', base .. ':format', format)
    begin_if_alone(base)
    heard_since(base, clock(), tonumber(patience))
    redis.call('ZADD', base .. ':v', clock(), server)
    return { epoch_of(base), tonumber(format) }
end

-- A server says that it lives and which epoch it knows, and looks after those that have not said so for a while. A server that was away itself does
-- not judge others, a lost one has missed both of its last two heartbeats, and none is lost before all could come back: perhaps it was Redis
-- that was away. Answers also of which version all this is by now.
function registry.beat(base, now, server, patience, epoch)
    local moment, lost = clock(), 0
    patience = tonumber(patience)
    local before, since = redis.call('ZSCORE', base .. ':v', server), heard_since(base, moment, patience)
    local previous = redis.call('HGET', base .. ':p', server)
    redis.call('ZADD', base .. ':v', moment, server)
    redis.call('HSET', base .. ':p', server, before or 0)
    raise_epoch(base, tonumber(epoch))
    if before and tonumber(before) > moment - patience and moment - since >= patience + TIME_TO_RETURN then
        local heard_after = string.format('%.0f', math.min(moment - patience, tonumber(previous or 0) - 1))
        for _, dead in ipairs(redis.call('ZRANGEBYSCORE', base .. ':v', '-inf', heard_after)) do
            forget_server(base, dead, now)
            lost = lost + 1
        end
    end
    return { redis.call('ZCARD', base .. ':v') - 1, lost, before and 0 or 1, epoch_of(base),
        tonumber(redis.call('GET', base .. ':format') or 0) }
end

-- A server ends in good order.
registry['end'] = function(base, now, server)
    forget_server(base, server, now)
    begin_if_alone(base)
    return {}
end

-- A server that lost the thread says which epoch it knows and which sessions are connected there, and that is so from now on.
function registry.settle(base, now, server, patience, epoch, words)
    local kept = {}
    heard_since(base, clock(), tonumber(patience))
    redis.call('ZADD', base .. ':v', clock(), server)
    raise_epoch(base, tonumber(epoch))
    for place = 6, #words, 2 do
        kept[words[place]] = true
    end
    part_sessions(base, server, kept, now)
    for place = 6, #words, 2 do
        local session = session_of(base, words[place]) or { connections = 0, ends = NO_END }
        set_connections(base, server, words[place], session, tonumber(words[place + 1]), now)
    end
    return { epoch_of(base) }
end

function registry.join(base, now, session_id, create, server)
    local session = session_of(base, session_id)
    if not lives(session, now) then
        if create == '0' then
            return { UNKNOWN }
        elseif session then
            -- Its time was over, though no tick has said so yet: first it ends.
            return { STALE }
        end
        session = { connections = 0, ends = NO_END }
    end
    local here = tonumber(redis.call('HGET', base .. ':c:' .. server, session_id) or 0)
    set_connections(base, server, session_id, session, here + 1, now)
    return { OK }
end

-- Answers also when the session ends, if that was set. One that ends at once does so when its tasks are back.
function registry.leave(base, now, session_id, server)
    local session = session_of(base, session_id)
    if not lives(session, now) then
        return { UNKNOWN, NEVER }
    end
    local here = tonumber(redis.call('HGET', base .. ':c:' .. server, session_id) or 0)
    set_connections(base, server, session_id, session, math.max(here - 1, 0), now)
    if session.connections > 0 then
        return { OK, NEVER }
    end
    -- Who leaves a session that nobody is in begins its time anew.
    session.ends = later(now, session_ttr(base))
    set_session(base, session_id, session)
    if session.ends <= now then
        return { ENDING, NEVER }
    end
    return { OK, session.ends }
end

function registry.configure(base, _, ttr)
    redis.call('SET', base .. ':ttr', ttr)
    return {}
end

-- Which of these sessions live.
function registry.lives(base, now, _, _, _, words)
    local alive = {}
    for place = 3, #words do
        alive[place - 2] = lives(session_of(base, words[place]), now) and 1 or 0
    end
    return alive
end

-- A session is about to take from these tubes for the first time.
function registry.hold(base, _, session_id, _, _, words)
    for place = 4, #words do
        redis.call('SADD', base .. ':t:' .. session_id, words[place])
    end
    return {}
end

-- The tubes a session took from.
function registry.held(base, _, session_id)
    return redis.call('SMEMBERS', base .. ':t:' .. session_id)
end

-- Sessions whose time is over, at most so many, and behind them when the next one ends.
function registry.due(base, now, limit)
    local ids = redis.call('ZRANGEBYSCORE', base .. ':e', '-inf', now, 'LIMIT', 0, limit)
    local first = redis.call('ZRANGEBYSCORE', base .. ':e', '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES',
        'LIMIT', 0, 1)
    ids[#ids + 1] = first[2] and tonumber(first[2]) or NEVER
    ids[#ids + 1] = now
    return ids
end

-- What a session held is back: it is no more, unless somebody has begun it again.
function registry.ended(base, now, session_id)
    if not lives(session_of(base, session_id), now) then
        redis.call('HDEL', base .. ':s', session_id)
        redis.call('ZREM', base .. ':e', session_id)
        redis.call('DEL', base .. ':t:' .. session_id)
    end
    return {}
end

-- Lease numbers that nobody else gets. They begin at this clock where that is further, so that none is issued twice
-- even if what was written last is lost with a node.
function registry.leases(base, _, size)
    local first = math.max(tonumber(redis.call('GET', base .. ':lease') or 0), clock())
    redis.call('SET', base .. ':lease', string.format('%.0f', first + size))
    return { first }
end

-- The first arguments are the verb and the moment (or nothing). A verb is given three words, and all where there may be
-- thousands, which do not fit on the stack.
local function look(keys, args)
    local now = tonumber(args[2]) or clock()
    local verb = registry[args[1]] or names[args[1]]
    return verb(keys[1], now, args[3], args[4], args[5], args)
end

redis.register_function({ function_name = NAME .. '_registry', callback = look, flags = { 'allow-oom' } })
