-- Identifies the incarnation of Redis: every start of the program is another one, and a replica that takes over has its own. What an
-- earlier incarnation wrote last may be lost although it was acknowledged. So numbers that must never repeat are stored with the
-- incarnation that gave them, and a later incarnation continues far beyond the last known number.

local incarnation = { SKIP = 1000000 }

function incarnation.id()
    -- It does not change as long as this library is in memory.
    if not incarnation.own then
        incarnation.own = string.sub(string.match(redis.call('INFO', 'server'), 'run_id:(%x+)'), 1, 16)
    end
    return incarnation.own
end

-- Whether numbers with this id were given by another incarnation. Numbers without an id come from an earlier version, and are trusted.
function incarnation.is_earlier(id)
    return id and id ~= '' and id ~= incarnation.id()
end
