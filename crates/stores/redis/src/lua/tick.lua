-- Applies due deadlines to about so many tasks, and removes done ones and free keys. Answers how many changed, and how many deliveries ended.
function verbs.tick(tube, header, call)
    local limit, seed = struct.unpack('<dd', header, 2)
    local moved, failed, all, retries_lost = 0, 0, {}, tube.options.retry and tube.options.retry.lost == 1
    while moved < limit do
        flush(tube)
        local ids = redis.call('ZRANGEBYSCORE', tube.base .. ':w', '-inf', tube.now, 'LIMIT', 0,
            math.min(limit - moved, TAKE_STEP))
        if #ids == 0 then
            break
        end
        load(tube, ids)
        for _, id in ipairs(ids) do
            local task = tube.tasks[id]
            if task.state == DELAYED then
                leave(tube, id, task)
                task.state, task.since, task.moment = READY, task.moment, 0
                enter(tube, id, task)
                count(tube, 'delay')
            elseif task.state == TAKEN then
                local delay = retries_lost and pace.delay_of(tube, id, task, seed) or 0
                give_back(tube, id, task, delay, true, 'ttr', failures.LEASE_EXPIRED)
                failed = failed + 1
            else
                remove(tube, id, task)
                count(tube, 'delete')
                count(tube, 'ttl')
            end
            all[#all + 1] = id
        end
        moved = moved + #ids
    end
    gates.regate(tube, all)
    moved = moved + done_tasks.trim(tube, math.max(limit - moved, 0))
    if tube.options.ended_keys then
        moved = moved + keyring.trim(tube, math.max(limit - moved, 0))
    end
    call:answer('\0' .. struct.pack('<dd', moved, failed))
end
