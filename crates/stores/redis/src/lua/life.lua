-- Which life of Redis this is: every start of the program is another one, and a replica that takes over has its own. What was written
-- last in the life before may be lost, though people were told of it. So numbers that must never come again bear the mark
-- of the life in which they were given, and in another life they go on well beyond the last that is known.

local life = { JUMP = 1000000 }

function life.mark()
    -- It does not change as long as this library is in memory.
    if not life.own then
        life.own = string.sub(string.match(redis.call('INFO', 'server'), 'run_id:(%x+)'), 1, 16)
    end
    return life.own
end

-- Whether numbers with this mark were given in another life. Those without one were written by an earlier version, and are believed.
function life.is_over(mark)
    return mark and mark ~= '' and mark ~= life.mark()
end
