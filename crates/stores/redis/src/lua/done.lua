-- Done tasks that a tube keeps: k their records, each followed by how its task ended (`finished.rs` of the core) without the result,
-- a results, e ids by the time of the end, i the blocks of ids that have some, by the time of their latest end. Large bodies stay under
-- b, failures under f. No other command than peek, list and delete sees them, and a tick removes them.

-- When a delivery ended, how long it lasted, the length of the worker's name, which follows.
local ENDED = '>I8I8B'
local ENDED_BYTES = 17
-- The state of a done task in answers.
local DONE_STATE = 6
-- The bytes of an id that are its block: a block has 256 ids.
local BLOCK_BYTES = 7

-- How a delivery ends now. Most deliveries of a call are equal, so the last text is reused.
function done_tasks.ended(tube, start, worker)
    local last = tube.last_ended
    if not last or last.start ~= start or last.worker ~= worker then
        local run = math.min(math.max(tube.now - start, 0), FOREVER)
        last = { start = start, worker = worker, text = struct.pack(ENDED, tube.now, run, #worker) .. worker }
        tube.last_ended = last
    end
    return last.text
end

-- Notes a task that ended now, or at this moment: its record and how it ended, or only the latter if the record is still under t.
function done_tasks.note(tube, id, text, result, moment)
    local kept = tube.kept
    if not kept then
        kept = { ids = {}, texts = {}, moments = {}, results = {} }
        tube.kept = kept
    end
    local place = #kept.ids + 1
    kept.ids[place], kept.texts[place], kept.moments[place] = id, text, moment
    if result and result ~= '' then
        local results = kept.results
        results[#results + 1] = id
        results[#results + 1] = result
    end
end

-- Notes a taken task that ends now.
function done_tasks.add(tube, id, task, result)
    done_tasks.note(tube, id, encode(task) .. done_tasks.ended(tube, task.start, task.worker or ''), result)
end

-- Notes a done task of another store.
function done_tasks.import(tube, id, task, finished)
    local at, _, size = struct.unpack(ENDED, finished)
    size = ENDED_BYTES + size
    done_tasks.note(tube, id, encode(task) .. string.sub(finished, 1, size), string.sub(finished, size + 1), at)
    tube.noted = true
end

-- Lists done tasks by their keys.
local function index_keys(base, ids, texts)
    local members = {}
    for place = 1, #ids do
        local member = keyring.done_member(ids[place], texts[place])
        if member then
            members[#members + 1] = '0'
            members[#members + 1] = member
        end
    end
    send('ZADD', base .. ':z', members)
end

-- Writes noted tasks.
function done_tasks.flush(tube)
    local base, kept, values, ends, blocks = tube.base, tube.kept, {}, {}, {}
    local ids, texts, moments, last_block, last_score = kept.ids, kept.texts, kept.moments, nil, nil
    tube.kept = nil
    for place = 1, #ids do
        local id, at = ids[place], 2 * place
        local score, block = score_text(moments[place] or tube.now), string.sub(id, 1, BLOCK_BYTES)
        values[at - 1], values[at] = id, texts[place]
        ends[at - 1], ends[at] = score, id
        if block ~= last_block or score ~= last_score then
            last_block, last_score = block, score
            blocks[#blocks + 1] = score
            blocks[#blocks + 1] = block
        end
    end
    send('HSET', base .. ':k', values)
    if tube.options.keyed then
        index_keys(base, ids, texts)
    end
    send('HSET', base .. ':a', kept.results)
    send('ZADD', base .. ':e', ends)
    for first = 1, #blocks, VALUES_MAX do
        -- A block has its latest end, also if the clock was set back.
        redis.call('ZADD', base .. ':i', 'GT', unpack(blocks, first, math.min(first + VALUES_MAX - 1, #blocks)))
    end
end

-- Writes noted tasks whose records are still under t. Without its record a task is not kept: another program has removed it.
function done_tasks.move(tube)
    local noted, lost = tube.kept, nil
    local ids, texts = noted.ids, noted.texts
    for first = 1, #ids, VALUES_MAX do
        local last = math.min(first + VALUES_MAX - 1, #ids)
        local records = redis.call('HMGET', tube.base .. ':t', unpack(ids, first, last))
        for item = 1, #records do
            local place, record = first + item - 1, records[item]
            texts[place] = record and record .. texts[place] or ''
            if not record then
                lost = lost or {}
                lost[#lost + 1] = ids[place]
            end
        end
    end
    done_tasks.flush(tube)
    done_tasks.remove(tube, lost or {})
end

local function read(text)
    local one, tail = {}, 0
    tail, one.bytes = struct.unpack('<I4I4', text, LENGTHS_AT)
    one.apart = one.bytes > INLINE_MAX
    local size = RECORD_BYTES + tail + (one.apart and 0 or one.bytes + 4)
    one.record, one.ended = string.sub(text, 1, size), string.sub(text, size + 1)
    one.at = struct.unpack('>I8', one.ended)
    return one
end

-- Those of these tasks that are done and not over age, by id. The caller has loaded the others.
function done_tasks.find(tube, ids)
    local found, unknown, keep, base = {}, {}, tube.options.keep_done, tube.base
    if keep < 0 then
        return found
    end
    flush(tube)
    for _, id in ipairs(ids) do
        if not tube.tasks[id] then
            unknown[#unknown + 1] = id
        end
    end
    local has_results = redis.call('EXISTS', base .. ':a') == 1
    for first = 1, #unknown, VALUES_MAX do
        local last = math.min(first + VALUES_MAX - 1, #unknown)
        for place, text in ipairs(redis.call('HMGET', base .. ':k', unpack(unknown, first, last))) do
            local id, one = unknown[first + place - 1], text and read(text)
            if one and later(one.at, keep) > tube.now then
                one.bytes = one.bytes + (has_results and redis.call('HSTRLEN', base .. ':a', id) or 0)
                found[id] = one
            end
        end
    end
    return found
end

-- Shows a done task. After its record and its body come its failures, if these are wanted and it has any, and how it ended.
function done_tasks.show(tube, shown, id, one, wants_failures)
    local base, texts = tube.base, shown.texts
    shown.heads[#shown.heads + 1] = id .. string.char(REASONS.finished, DONE_STATE)
    texts[#texts + 1] = one.record
    if one.apart then
        texts[#texts + 1] = redis.call('HGET', base .. ':b', id) or ''
    end
    if wants_failures and struct.unpack('<d', one.record, ATTEMPTS_AT) % 1 >= FAILED then
        texts[#texts + 1] = redis.call('HGET', base .. ':f', id) or ''
    end
    texts[#texts + 1] = one.ended .. (redis.call('HGET', base .. ':a', id) or '')
end

-- Removes these tasks from those with a key.
local function forget_keys(base, ids)
    local members = {}
    for first = 1, #ids, VALUES_MAX do
        local last = math.min(first + VALUES_MAX - 1, #ids)
        for place, text in ipairs(redis.call('HMGET', base .. ':k', unpack(ids, first, last))) do
            members[#members + 1] = text and keyring.done_member(ids[first + place - 1], text) or nil
        end
    end
    send('ZREM', base .. ':z', members)
end

-- Removes all of these tasks but their ends.
local function forget(tube, ids)
    local base = tube.base
    if tube.options.keyed then
        forget_keys(base, ids)
    end
    send('HDEL', base .. ':k', ids)
    for _, key in ipairs({ ':a', ':b', ':f' }) do
        -- Few tubes have these.
        if redis.call('EXISTS', base .. key) == 1 then
            send('HDEL', base .. key, ids)
        end
    end
end

-- The moment at which the oldest one ended.
local function oldest(base)
    local first = redis.call('ZRANGE', base .. ':e', '0', '0', 'WITHSCORES')
    return first[2] and tonumber(first[2])
end

-- Removes blocks that are empty because their latest task ended before the oldest one that is left.
local function forget_blocks(base)
    local ended = oldest(base)
    if ended then
        redis.call('ZREMRANGEBYSCORE', base .. ':i', '-inf', '(' .. string.format('%.0f', ended))
    else
        redis.call('UNLINK', base .. ':i')
    end
end

-- Removes these done tasks.
function done_tasks.remove(tube, ids)
    if #ids > 0 then
        forget(tube, ids)
        send('ZREM', tube.base .. ':e', ids)
        forget_blocks(tube.base)
    end
end

-- How many there are.
function done_tasks.count(tube)
    if not tube.options.has_done then
        return 0
    end
    flush(tube)
    return redis.call('ZCARD', tube.base .. ':e')
end

-- How many of this many tasks are too many. They are removed in groups: none until there are an eighth more than allowed.
local function excess(o, size)
    if o.keep_done < 0 then
        return size
    end
    local most = o.keep_done_max
    return size > most + math.floor(most / 8) and size - most or 0
end

-- When a tick has to remove some.
function done_tasks.due(tube)
    local o = tube.options
    local ended = o.has_done and oldest(tube.base)
    if not ended then
        return NEVER
    elseif excess(o, redis.call('ZCARD', tube.base .. ':e')) > 0 then
        return ended
    end
    return later(ended, o.keep_done)
end

-- Removes tasks that are over age or too many, the oldest first, at most so many. Answers how many.
function done_tasks.trim(tube, limit)
    local o, key = tube.options, tube.base .. ':e'
    if not o.has_done then
        return 0
    end
    flush(tube)
    local size = excess(o, redis.call('ZCARD', key))
    if o.keep_done >= 0 and o.keep_done < FOREVER then
        size = math.max(size, redis.call('ZCOUNT', key, '-inf', string.format('%.0f', tube.now - o.keep_done)))
    end
    size = math.min(size, limit)
    for first = 1, size, VALUES_MAX do
        local last = math.min(VALUES_MAX, size - first + 1) - 1
        forget(tube, redis.call('ZRANGE', key, 0, last))
        redis.call('ZREMRANGEBYRANK', key, 0, last)
    end
    if size > 0 then
        forget_blocks(tube.base)
    end
    if o.keep_done == done_tasks.SOME_LEFT and redis.call('EXISTS', key) == 0 then
        change_options(tube, { keep_done = NONE_KEPT })
    end
    return size
end
