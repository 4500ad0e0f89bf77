-- Sessions: they may have connections at several servers.

-- Gives back what a session holds and removes it. Answers the number of tasks.
function end_session(c, session)
    local count, by_tube, order, row = 0, {}, {}, S.session:get(session)
    local cause = row and row[4] and ERRORS.server_lost or ERRORS.session_ended
    for _, row in ipairs(S.held:select({ session })) do
        if not by_tube[row[2]] then
            by_tube[row[2]] = {}
            order[#order + 1] = row[2]
        end
        table.insert(by_tube[row[2]], delivery_of(open_number(c, row[2]), row[3]))
        count = count + 1
    end
    local ids = {}
    for _, of in ipairs(order) do
        ids[of] = give_back_all(c, open_number(c, of), by_tube[of], true, cause)
    end
    for _, of in ipairs(order) do
        regate(c, open_number(c, of), ids[of])
    end
    S.session:delete(session)
    c.alive[session] = false
    return count
end

function connections_at(server, session)
    local row = S.connection:get({ server, session })
    return row and row[3] or 0
end

local function set_connections(server, session, count)
    if count > 0 then
        S.connection:replace({ server, session, count })
    else
        S.connection:delete({ server, session })
    end
end

local function session_ttr()
    return read_meta('session_ttr') or 0
end

-- Sets the number of connections of a session at a server, which may be declared dead. A session without connections ends when its time has
-- passed. Its row has a fourth field if its last server was declared dead.
function connect(c, server, session, count, dead)
    local row = S.session:get(session)
    local all, ends, lost = row and row[2] or 0, row and row[3] or STORED_NEVER, row and row[4] or nil
    all = all + count - connections_at(server, session)
    set_connections(server, session, count)
    if all > 0 then
        ends, lost = STORED_NEVER, nil
    elseif ends == STORED_NEVER then
        ends, lost = stamp(later(c.now, session_ttr())), dead
    end
    S.session:replace({ session, all, ends, lost })
    c.alive[session] = nil
    return all
end

verbs[13] = function(c, command)
    local session, create_it = text(command[2]), command[3]
    if not is_alive(c, session) then
        if not create_it then
            return refuse('session_unknown', session)
        end
        -- Its time is over, but no tick has ended it yet.
        end_session(c, session)
    end
    connect(c, c.server, session, connections_at(c.server, session) + 1)
    return { REPLY.session, session }
end

verbs[14] = function(c, command)
    local session = text(command[2])
    if not is_alive(c, session) then
        return refuse('session_unknown', session)
    end
    local here = math.max(connections_at(c.server, session) - 1, 0)
    if connect(c, c.server, session, here) > 0 then
        return NOTHING
    end
    local ttr = session_ttr()
    if ttr == 0 then
        end_session(c, session)
    else
        -- Leaving a session without connections restarts its time.
        S.session:update(session, { { '=', 3, stamp(later(c.now, ttr)) } })
    end
    return NOTHING
end

verbs[15] = function(c, command)
    write_meta('session_ttr', tonumber(command[2]))
    return NOTHING
end
