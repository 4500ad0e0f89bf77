-- Names of tubes and semaphores, under the hash tag of the registry: tubes their numbers, homes the tags of tubes whose tag is not their name,
-- queues the tube of each queue number, pending names that are being given, semaphores their numbers, free the numbers of dropped
-- semaphores, begins the first event of the next semaphore with a number, grants the last grant of all dropped semaphores.
--
-- A tube keeps the tag of its first name when it is renamed. Its own keys decide whether it exists, its name and its number; the entries
-- here are written before those keys change and removed afterwards. So a change may be interrupted anywhere: a wrong entry is recognised by
-- a call to the tube, and is ignored when no server can be about to make it true any more.

-- How long a server has to use a reservation, and how long others wait before they treat it as abandoned: nodes of a cluster have clocks of
-- their own.
local TIME_TO_USE, TIME_TO_WAIT = 10 * 1000000, 20 * 1000000

local OK, UNKNOWN, TOO_MANY, LISTED = 0, 2, 4, 6

-- The next unused number of this kind. After a restart of Redis this many are skipped.
local function next_number(base, kind, skipped)
    local incarnations = base .. ':life'
    if incarnation.is_earlier(redis.call('HGET', incarnations, kind)) then
        redis.call('INCRBY', base .. ':' .. kind, skipped)
    end
    redis.call('HSET', incarnations, kind, incarnation.id())
    return redis.call('INCR', base .. ':' .. kind)
end

-- Numbers of semaphores are part of event ids, which must be exact in JSON: there cannot be many more than there may be semaphores.
local TUBES_SKIPPED, SEMAPHORES_SKIPPED = TUBES_MAX, 256

local function tag_of(base, name)
    return redis.call('HGET', base .. ':homes', name) or name
end

-- Lists a name with the number and the tag of its tube.
function listing.add(base, name, number, tag)
    redis.call('HSET', base .. ':tubes', name, number)
    if tag == name then
        redis.call('HDEL', base .. ':homes', name)
    else
        redis.call('HSET', base .. ':homes', name, tag)
    end
end

-- The tag of a new tube: its name, unless another tube has that tag.
local function new_tag(base, name, number)
    for _, tag in ipairs(redis.call('HVALS', base .. ':homes')) do
        if tag == name then
            return name .. ':' .. number
        end
    end
    return name
end

local function is_pending(base, name)
    local ends = redis.call('HGET', base .. ':pending', name)
    return ends and tonumber(ends) > clock() and 1 or 0
end

-- Lists a name for a tube to be created, unless it is listed already. Answers a number, the tag, and whether another server may still be about
-- to give the name to a tube.
function names.reserve(base, _, name)
    local tubes = base .. ':tubes'
    if redis.call('HEXISTS', tubes, name) == 1 then
        return { LISTED, next_number(base, 'number', TUBES_SKIPPED), tag_of(base, name), is_pending(base, name) }
    end
    local size = redis.call('HLEN', tubes)
    if size >= TUBES_MAX then
        return { TOO_MANY, size }
    end
    local number = next_number(base, 'number', TUBES_SKIPPED)
    local tag = new_tag(base, name, number)
    listing.add(base, name, number, tag)
    return { OK, number, tag, 0 }
end

-- Reuses a listed name that no tube has. The tag stays, unless another tube has it. Answers also the number that was listed before.
function names.list(base, _, name, number, seen)
    local tag, before = tag_of(base, name), redis.call('HGET', base .. ':tubes', name)
    if tag == seen then
        tag = name .. ':' .. number
    end
    listing.add(base, name, number, tag)
    return { OK, tonumber(number), tag, 0, tonumber(before or 0) }
end

-- Restores the number of a tube that another server created, or may be about to create.
function names.relist(base, _, name, number, other)
    if redis.call('HGET', base .. ':tubes', name) == number then
        redis.call('HSET', base .. ':tubes', name, other)
    end
    return {}
end

-- Removes the name of a dropped tube, unless another tube of that name was created, which has another number.
function names.unlist(base, _, name, number)
    if redis.call('HGET', base .. ':tubes', name) == number then
        redis.call('HDEL', base .. ':tubes', name)
        redis.call('HDEL', base .. ':homes', name)
        redis.call('HDEL', base .. ':pending', name)
    end
    return {}
end

-- Reserves a new name for a tube. If the name is listed already, the caller must check that tube; `seen` is the number of a tube that does
-- not exist. An earlier attempt may have been interrupted. Answers until when the tube may get the name.
function names.rename(base, _, from, to, seen)
    local number, other = redis.call('HGET', base .. ':tubes', from), redis.call('HGET', base .. ':tubes', to)
    if not number then
        return { UNKNOWN, 0 }
    elseif other and other ~= number and (other ~= seen or is_pending(base, to) == 1) then
        return { LISTED, tonumber(other), tag_of(base, to), is_pending(base, to) }
    end
    listing.add(base, to, number, tag_of(base, from))
    redis.call('HSET', base .. ':pending', to, string.format('%.0f', clock() + TIME_TO_WAIT))
    return { OK, clock() + TIME_TO_USE }
end

-- The tube has its new name.
function names.renamed(base, _, from, to, number)
    redis.call('HDEL', base .. ':pending', to)
    return names.unlist(base, nil, from, number)
end

-- The tags of these names; empty for a name that is not listed.
function names.tags(base, _, _, _, _, words)
    local tags = {}
    for place = 3, #words do
        local listed = redis.call('HEXISTS', base .. ':tubes', words[place]) == 1
        tags[place - 2] = listed and tag_of(base, words[place]) or ''
    end
    return tags
end

-- All names, each with its tag.
function names.tubes(base)
    local found, tags, pairs_of = {}, {}, redis.call('HGETALL', base .. ':homes')
    for place = 1, #pairs_of, 2 do
        tags[pairs_of[place]] = pairs_of[place + 1]
    end
    for _, name in ipairs(redis.call('HKEYS', base .. ':tubes')) do
        found[#found + 1] = name
        found[#found + 1] = tags[name] or name
    end
    return found
end

-- The numbers of a new semaphore: its number, its first event, and the grant before its first, because grants of dropped semaphores may
-- still be in use.
local function begin(base, number)
    return { OK, tonumber(number), tonumber(redis.call('HGET', base .. ':begins', number) or 0),
        tonumber(redis.call('GET', base .. ':grants') or 0) }
end

-- The number of a semaphore, which it gets before it is created.
function names.semaphore(base, _, key)
    local number = redis.call('HGET', base .. ':semaphores', key)
    if number then
        return begin(base, number)
    elseif redis.call('HLEN', base .. ':semaphores') >= SEMAPHORES_MAX then
        return { TOO_MANY, SEMAPHORES_MAX }
    end
    -- Numbers of dropped semaphores are reused.
    number = redis.call('SPOP', base .. ':free') or next_number(base, 'semaphore', SEMAPHORES_SKIPPED)
    redis.call('HSET', base .. ':semaphores', key, number)
    return begin(base, number)
end

-- Frees the number of a dropped semaphore, with its last grant and the first event of the next one. Idempotent.
function names.unlist_semaphore(base, _, key, number, events, args)
    local grants = math.max(tonumber(redis.call('GET', base .. ':grants') or 0), tonumber(args[6]))
    redis.call('SET', base .. ':grants', string.format('%.0f', grants))
    if tonumber(redis.call('HGET', base .. ':begins', number) or 0) < tonumber(events)
        and redis.call('HGET', base .. ':semaphores', key) == number then
        redis.call('HSET', base .. ':begins', number, events)
        redis.call('HDEL', base .. ':semaphores', key)
        redis.call('SADD', base .. ':free', number)
    end
    return {}
end

-- Lists an existing semaphore, which may have been lost here.
function names.list_semaphore(base, _, key, number)
    redis.call('HSETNX', base .. ':semaphores', key, number)
    return {}
end

-- All keys of semaphores, each with its number.
function names.semaphores(base)
    return redis.call('HGETALL', base .. ':semaphores')
end

-- Reserves a queue number for the tube of this tag. If another tube has it, the caller must check that tube; `seen` is an entry that is wrong.
-- Answers until when the tube may get the number.
function names.claim(base, _, queue, tag, seen)
    local text = redis.call('HGET', base .. ':queues', queue)
    if text and text ~= seen then
        local other, ends = string.match(text, '^(.*) (%d+)$')
        if other ~= tag then
            return { LISTED, tonumber(ends) > clock() and 1 or 0, other, text }
        end
    end
    redis.call('HSET', base .. ':queues', queue, tag .. ' ' .. string.format('%.0f', clock() + TIME_TO_WAIT))
    return { OK, clock() + TIME_TO_USE }
end

-- The tube has its queue number, or does not get it.
function names.claimed(base, _, queue, tag)
    local other = string.match(redis.call('HGET', base .. ':queues', queue) or '', '^(.*) %d+$')
    if other == tag then
        redis.call('HSET', base .. ':queues', queue, tag .. ' 0')
    end
    return {}
end

