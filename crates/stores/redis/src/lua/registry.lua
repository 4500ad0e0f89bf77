-- The registry of servers, sessions and numbers, under a hash tag of its own (names of tubes are in names.lua, schedules in schedules.lua): s sessions, e when those
-- without connections end, c:SERVER connections at a server, t:SESSION tags of tubes it took from, v servers by their last heartbeat,
-- p the heartbeat before that of each server, life the incarnation of Redis that gave numbers and received heartbeats, and since when,
-- ttr, epoch, lease, number, and format: the version of the stored format.

-- The number of connections, and when the session ends if none comes back (negative: it has connections). A byte follows if its last
-- server was declared dead; servers of earlier versions ignore and remove it.
local SESSION, SESSION_BYTES, LOST = '<dd', 16, 'l'
local NO_END = -1

local OK, UNKNOWN, STALE, ENDING = 0, 2, 9, 10

local function session_of(base, id)
    local raw = redis.call('HGET', base .. ':s', id)
    if raw then
        local connections, ends = struct.unpack(SESSION, raw)
        return { connections = connections, ends = ends, lost = #raw > SESSION_BYTES }
    end
end

local function is_alive(session, now)
    return session and (session.ends < 0 or session.ends > now)
end

local function set_session(base, id, session)
    redis.call('HSET', base .. ':s', id, struct.pack(SESSION, session.connections, session.ends) .. (session.lost and LOST or ''))
    if session.ends >= 0 and session.ends < NEVER then
        redis.call('ZADD', base .. ':e', session.ends, id)
    else
        redis.call('ZREM', base .. ':e', id)
    end
end

local function session_ttr(base)
    return tonumber(redis.call('GET', base .. ':ttr') or 0)
end

-- Sets the number of connections of a session at a server, which may be declared dead. A session without connections ends when its time has
-- passed.
local function set_connections(base, server, id, session, connections, now, dead)
    local key = base .. ':c:' .. server
    local before = tonumber(redis.call('HGET', key, id) or 0)
    session.connections = session.connections + connections - before
    if connections > 0 then
        redis.call('HSET', key, id, connections)
    else
        redis.call('HDEL', key, id)
    end
    if session.connections > 0 then
        session.ends, session.lost = NO_END, false
    elseif session.ends < 0 then
        session.ends, session.lost = later(now, session_ttr(base)), dead
    end
    set_session(base, id, session)
end

-- Removes the connections of a server from all sessions but these.
local function disconnect_sessions(base, server, kept, now, dead)
    for _, id in ipairs(redis.call('HKEYS', base .. ':c:' .. server)) do
        local session = session_of(base, id)
        if not session then
            redis.call('HDEL', base .. ':c:' .. server, id)
        elseif not kept[id] then
            set_connections(base, server, id, session, 0, now, dead)
        end
    end
end

local function forget_server(base, server, now, dead)
    disconnect_sessions(base, server, {}, now, dead)
    redis.call('ZREM', base .. ':v', server)
    redis.call('HDEL', base .. ':p', server)
    redis.call('DEL', base .. ':c:' .. server)
end

-- How long servers have to reconnect to a Redis that was away: as long as opening a connection may take.
local TIME_TO_RETURN = 5000000

-- Since when heartbeats have been received without a gap. A Redis that has just started, has taken over or was unreachable received none
-- meanwhile, and its clock may differ from the one of the last heartbeats.
local function heard_since(base, moment, patience)
    local known = redis.call('HMGET', base .. ':life', 'servers', 'since')
    local latest = redis.call('ZREVRANGE', base .. ':v', 0, 0, 'WITHSCORES')[2]
    if known[1] == incarnation.id() and latest and tonumber(latest) > moment - patience then
        return tonumber(known[2])
    end
    for _, server in ipairs(redis.call('ZRANGEBYSCORE', base .. ':v', '(' .. string.format('%.0f', moment), '+inf')) do
        redis.call('ZADD', base .. ':v', moment, server)
    end
    redis.call('HSET', base .. ':life', 'servers', incarnation.id(), 'since', string.format('%.0f', moment))
    return moment
end

local function epoch_of(base)
    return tonumber(redis.call('GET', base .. ':epoch') or 0)
end

-- Restores an epoch that a server knows and Redis lost.
local function raise_epoch(base, epoch)
    if epoch > epoch_of(base) then
        redis.call('SET', base .. ':epoch', string.format('%.0f', epoch))
    end
end

-- All servers are gone, and with them all sessions. The next call to each tube restarts it.
local function begin_epoch(base)
    for _, server in ipairs(redis.call('ZRANGE', base .. ':v', 0, -1)) do
        redis.call('DEL', base .. ':c:' .. server)
    end
    for _, id in ipairs(redis.call('HKEYS', base .. ':s')) do
        redis.call('DEL', base .. ':t:' .. id)
    end
    redis.call('DEL', base .. ':v', base .. ':p', base .. ':s', base .. ':e', base .. ':ttr')
    -- Not below the clock, so that no tube has it already, even if the last epoch was lost.
    raise_epoch(base, math.max(epoch_of(base) + 1, clock()))
end

-- Only if all servers ended in order. A listed server without heartbeats may be alive: Redis may have been away.
local function begin_if_alone(base)
    if redis.call('ZCARD', base .. ':v') == 0 then
        begin_epoch(base)
    end
end

local registry = {}

-- Registers a server, unless the stored format is later than it knows. Without other servers a new epoch begins.
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

-- Records a heartbeat and the epoch that the server knows, and removes dead servers. A server that was away itself does not remove others, a
-- dead one has missed both of its last two heartbeats, and none is removed before all could reconnect: Redis may have been away. Answers
-- also the version of the stored format.
function registry.heartbeat(base, now, server, patience, epoch)
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
            forget_server(base, dead, now, true)
            lost = lost + 1
        end
    end
    return { redis.call('ZCARD', base .. ':v') - 1, lost, before and 0 or 1, epoch_of(base),
        tonumber(redis.call('GET', base .. ':format') or 0) }
end

-- A server ends in order.
registry['end'] = function(base, now, server)
    forget_server(base, server, now)
    begin_if_alone(base)
    return {}
end

-- Replaces the sessions that are connected at a server, and restores the epoch that it knows.
function registry.resync(base, now, server, patience, epoch, words)
    local kept = {}
    heard_since(base, clock(), tonumber(patience))
    redis.call('ZADD', base .. ':v', clock(), server)
    raise_epoch(base, tonumber(epoch))
    for place = 6, #words, 2 do
        kept[words[place]] = true
    end
    disconnect_sessions(base, server, kept, now)
    for place = 6, #words, 2 do
        local session = session_of(base, words[place]) or { connections = 0, ends = NO_END }
        set_connections(base, server, words[place], session, tonumber(words[place + 1]), now)
    end
    return { epoch_of(base) }
end

function registry.join(base, now, session_id, create, server)
    local session = session_of(base, session_id)
    if not is_alive(session, now) then
        if create == '0' then
            return { UNKNOWN }
        elseif session then
            -- Its time is over, but no tick has ended it yet: first it must end.
            return { STALE }
        end
        session = { connections = 0, ends = NO_END }
    end
    local here = tonumber(redis.call('HGET', base .. ':c:' .. server, session_id) or 0)
    set_connections(base, server, session_id, session, here + 1, now)
    return { OK }
end

-- Answers also when the session ends, if that is set. A session that ends at once does so when its tasks are given back.
function registry.leave(base, now, session_id, server)
    local session = session_of(base, session_id)
    if not is_alive(session, now) then
        return { UNKNOWN, NEVER }
    end
    local here = tonumber(redis.call('HGET', base .. ':c:' .. server, session_id) or 0)
    set_connections(base, server, session_id, session, math.max(here - 1, 0), now)
    if session.connections > 0 then
        return { OK, NEVER }
    end
    -- Leaving a session without connections restarts its time.
    session.ends, session.lost = later(now, session_ttr(base)), false
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

-- Which of these sessions are alive.
function registry.alive(base, now, _, _, _, words)
    local alive = {}
    for place = 3, #words do
        alive[place - 2] = is_alive(session_of(base, words[place]), now) and 1 or 0
    end
    return alive
end

-- Records the tubes from which a session is about to take.
function registry.hold(base, _, session_id, _, _, words)
    for place = 4, #words do
        redis.call('SADD', base .. ':t:' .. session_id, words[place])
    end
    return {}
end

-- Whether the last server of a session was declared dead, then the tubes from which it took.
function registry.held(base, _, session_id)
    local held, session = redis.call('SMEMBERS', base .. ':t:' .. session_id), session_of(base, session_id)
    table.insert(held, 1, session and session.lost and 1 or 0)
    return held
end

-- Sessions whose time is over, at most so many, then when the next one ends, and this clock.
function registry.due(base, now, limit)
    local ids = redis.call('ZRANGEBYSCORE', base .. ':e', '-inf', now, 'LIMIT', 0, limit)
    local first = redis.call('ZRANGEBYSCORE', base .. ':e', '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES',
        'LIMIT', 0, 1)
    ids[#ids + 1] = first[2] and tonumber(first[2]) or NEVER
    ids[#ids + 1] = now
    return ids
end

-- Removes a session whose tasks are given back, unless it was created again.
function registry.ended(base, now, session_id)
    if not is_alive(session_of(base, session_id), now) then
        redis.call('HDEL', base .. ':s', session_id)
        redis.call('ZREM', base .. ':e', session_id)
        redis.call('DEL', base .. ':t:' .. session_id)
    end
    return {}
end

-- Reserves lease numbers. They begin not below the clock, so that none is issued twice even if a node loses its last writes.
function registry.leases(base, _, size)
    local first = math.max(tonumber(redis.call('GET', base .. ':lease') or 0), clock())
    redis.call('SET', base .. ':lease', string.format('%.0f', first + size))
    return { first }
end

-- The first arguments are the verb and the moment (or nothing). A verb gets three arguments, and the list of all, because thousands do not
-- fit on the stack.
local function run_registry_call(keys, args)
    local now = tonumber(args[2]) or clock()
    local verb = registry[args[1]] or names[args[1]] or schedules[args[1]]
    return verb(keys[1], now, args[3], args[4], args[5], args)
end

-- Writes a key that expires, to check that this node accepts writes. Refused when its memory is full.
redis.register_function(NAME .. '_check_write', function(keys)
    return redis.call('SET', keys[1], '', 'PX', 60000)
end)

redis.register_function({ function_name = NAME .. '_registry', callback = run_registry_call, flags = { 'allow-oom' } })
