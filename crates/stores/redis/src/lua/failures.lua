-- The latest failures of tasks, in the layout of the core (`failure.rs`). They are under f, by id; the record of a task says whether it
-- has any. Servers of a version without failures keep what the record says, but leave the failures of tasks that they remove.

local failures = { LEASE_EXPIRED = '{{LEASE_EXPIRED}}', SESSION_ENDED = '{{SESSION_ENDED}}', SERVER_LOST = '{{SERVER_LOST}}' }

do
    local FAILURES_MAX = {{FAILURES_MAX}}
    -- When the delivery ended, which attempt it was, how long it lasted, the lengths of the worker's name and of the error.
    local ENTRY = '>I8I4I8BI2'
    local ENTRY_BYTES, LENGTHS = 23, '>BI2'

    -- The failures that stay when one more is added.
    local function newest(text)
        local starts, place = {}, 1
        while place <= #text do
            starts[#starts + 1] = place
            local worker, cause = struct.unpack(LENGTHS, text, place + ENTRY_BYTES - 3)
            place = place + ENTRY_BYTES + worker + cause
        end
        local surplus = #starts + 1 - FAILURES_MAX
        return surplus > 0 and string.sub(text, starts[surplus + 1] or place) or text
    end

    -- The failures of a task as text, empty if it has none.
    function failures.of(tube, id, task)
        if not task.failed then
            return ''
        end
        return tube.f and tube.f[id] or redis.call('HGET', tube.base .. ':f', id) or ''
    end

    -- Adds a failure to a task, before its delivery ends. The caller notes the record.
    function failures.add(tube, id, task, cause, is_expired)
        local at, run, worker = tube.now, 0, ''
        if task.state == TAKEN then
            -- An expired delivery ended when its time was over, whenever that is noticed.
            at = is_expired and task.moment or at
            run, worker = math.min(math.max(at - task.start, 0), FOREVER), task.worker or ''
        end
        local entry = struct.pack(ENTRY, at, math.min(task.attempts + 1, ATTEMPTS_MAX), run, #worker, #cause)
        note_failures(tube, id, newest(failures.of(tube, id, task)) .. entry .. worker .. cause)
        task.failed = true
    end
end
