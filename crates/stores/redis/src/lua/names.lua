-- Names of tubes, under the same tag as the registry: tubes has their numbers, homes where each lives that does not live under its name,
-- queues whose a number of a queue is, pending names that are being given, semaphores the numbers of those,
-- free the numbers of dropped ones, begins with which event a number begins anew, grants the last grant of all that were dropped.
--
-- A tube lives where it was made, under the tag of its first name, also when it is called something else later. That it
-- exists, what it is called and which number it has is what its own keys say; what stands here is written before those
-- change and taken back after. So it may break off anywhere: what is untrue here is found out by asking the tube, and counts
-- for nothing once nobody can still be about to make it true.

local TUBES_MAX = 10000
-- How long one who was promised something has to make it true, and how long others wait before they look whether it is:
-- nodes of a cluster have clocks of their own.
local TIME_TO_USE, TIME_TO_WAIT = 10000000, 20000000

local OK, UNKNOWN, TOO_MANY, LISTED = 0, 2, 4, 6

-- The next number of this kind, which nobody has had. In another life of Redis this many are left out.
local function next_number(base, kind, left_out)
    local lives = base .. ':life'
    if life.is_over(redis.call('HGET', lives, kind)) then
        redis.call('INCRBY', base .. ':' .. kind, left_out)
    end
    redis.call('HSET', lives, kind, life.mark())
    return redis.call('INCR', base .. ':' .. kind)
end

-- Numbers of semaphores stand in those of their events, which should be exact in JSON: there is not room for many more than there may be semaphores.
local TUBES_LEFT_OUT, SEMAPHORES_LEFT_OUT = 10000, 256

local function home_of(base, name)
    return redis.call('HGET', base .. ':homes', name) or name
end

-- A name is listed, with the number of its tube and where that lives.
function listing.add(base, name, number, home)
    redis.call('HSET', base .. ':tubes', name, number)
    if home == name then
        redis.call('HDEL', base .. ':homes', name)
    else
        redis.call('HSET', base .. ':homes', name, home)
    end
end

-- Where a new tube may live: under its name, unless one that was called so still does.
local function new_home(base, name, number)
    for _, home in ipairs(redis.call('HVALS', base .. ':homes')) do
        if home == name then
            return name .. ':' .. number
        end
    end
    return name
end

local function is_pending(base, name)
    local ends = redis.call('HGET', base .. ':pending', name)
    return ends and tonumber(ends) > clock() and 1 or 0
end

-- A name for a tube that is to be made: listed, unless it is already. Answers a number, where it lives, and whether somebody
-- may still be about to give that name to another.
function names.reserve(base, _, name)
    local tubes = base .. ':tubes'
    if redis.call('HEXISTS', tubes, name) == 1 then
        return { LISTED, next_number(base, 'number', TUBES_LEFT_OUT), home_of(base, name), is_pending(base, name) }
    end
    local size = redis.call('HLEN', tubes)
    if size >= TUBES_MAX then
        return { TOO_MANY, size }
    end
    local number = next_number(base, 'number', TUBES_LEFT_OUT)
    local home = new_home(base, name, number)
    listing.add(base, name, number, home)
    return { OK, number, home, 0 }
end

-- No tube has the name that is listed: it is for a new one. Where it lives stays, unless that was seen to be another's. Answers also which
-- number was listed before.
function names.list(base, _, name, number, seen)
    local home, before = home_of(base, name), redis.call('HGET', base .. ':tubes', name)
    if home == seen then
        home = name .. ':' .. number
    end
    listing.add(base, name, number, home)
    return { OK, tonumber(number), home, 0, tonumber(before or 0) }
end

-- Somebody else made the tube, or may be about to, under another number than was listed for it last.
function names.relist(base, _, name, number, other)
    if redis.call('HGET', base .. ':tubes', name) == number then
        redis.call('HSET', base .. ':tubes', name, other)
    end
    return {}
end

-- A tube is gone; somebody may have made another of its name, which has another number.
function names.unlist(base, _, name, number)
    if redis.call('HGET', base .. ':tubes', name) == number then
        redis.call('HDEL', base .. ':tubes', name)
        redis.call('HDEL', base .. ':homes', name)
        redis.call('HDEL', base .. ':pending', name)
    end
    return {}
end

-- A tube is about to be called something else. Where that name is listed already, this asks to look; `seen` is the number of
-- a tube that was looked for and is not there. An earlier try of the same may have broken off. Answers until when it may be done.
function names.rename(base, _, from, to, seen)
    local number, other = redis.call('HGET', base .. ':tubes', from), redis.call('HGET', base .. ':tubes', to)
    if not number then
        return { UNKNOWN, 0 }
    elseif other and other ~= number and (other ~= seen or is_pending(base, to) == 1) then
        return { LISTED, tonumber(other), home_of(base, to), is_pending(base, to) }
    end
    listing.add(base, to, number, home_of(base, from))
    redis.call('HSET', base .. ':pending', to, string.format('%.0f', clock() + TIME_TO_WAIT))
    return { OK, clock() + TIME_TO_USE }
end

-- It is called so.
function names.renamed(base, _, from, to, number)
    redis.call('HDEL', base .. ':pending', to)
    return names.unlist(base, nil, from, number)
end

-- Where tubes of these names live; nothing for a name that is not listed.
function names.homes(base, _, _, _, _, words)
    local homes = {}
    for place = 3, #words do
        local listed = redis.call('HEXISTS', base .. ':tubes', words[place]) == 1
        homes[place - 2] = listed and home_of(base, words[place]) or ''
    end
    return homes
end

-- All names, each with where it lives.
function names.tubes(base)
    local found, homes, pairs_of = {}, {}, redis.call('HGETALL', base .. ':homes')
    for place = 1, #pairs_of, 2 do
        homes[pairs_of[place]] = pairs_of[place + 1]
    end
    for _, name in ipairs(redis.call('HKEYS', base .. ':tubes')) do
        found[#found + 1] = name
        found[#found + 1] = homes[name] or name
    end
    return found
end

local SEMAPHORES_MAX = 100000

-- A number for a semaphore that is to be made, with which event it begins, and after which grant: those of dropped ones may still be named.
local function begin(base, number)
    return { OK, tonumber(number), tonumber(redis.call('HGET', base .. ':begins', number) or 0),
        tonumber(redis.call('GET', base .. ':grants') or 0) }
end

-- The number of a semaphore, which it gets before it is made.
function names.semaphore(base, _, key)
    local number = redis.call('HGET', base .. ':semaphores', key)
    if number then
        return begin(base, number)
    elseif redis.call('HLEN', base .. ':semaphores') >= SEMAPHORES_MAX then
        return { TOO_MANY, SEMAPHORES_MAX }
    end
    -- One that was dropped leaves its number.
    number = redis.call('SPOP', base .. ':free') or next_number(base, 'semaphore', SEMAPHORES_LEFT_OUT)
    redis.call('HSET', base .. ':semaphores', key, number)
    return begin(base, number)
end

-- A semaphore was dropped, after this grant and before this event: its number is free. A second call with the same numbers changes
-- nothing.
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

-- A semaphore is there and has this number, though it may have been lost here.
function names.list_semaphore(base, _, key, number)
    redis.call('HSETNX', base .. ':semaphores', key, number)
    return {}
end

-- All keys of semaphores, each with its number.
function names.semaphores(base)
    return redis.call('HGETALL', base .. ':semaphores')
end

-- The tube that lives here is about to get the number of a queue. Where another has it, this asks to look; `seen` is
-- what was here and is untrue. Answers until when it may be done.
function names.claim(base, _, queue, home, seen)
    local text = redis.call('HGET', base .. ':queues', queue)
    if text and text ~= seen then
        local other, ends = string.match(text, '^(.*) (%d+)$')
        if other ~= home then
            return { LISTED, tonumber(ends) > clock() and 1 or 0, other, text }
        end
    end
    redis.call('HSET', base .. ':queues', queue, home .. ' ' .. string.format('%.0f', clock() + TIME_TO_WAIT))
    return { OK, clock() + TIME_TO_USE }
end

-- It has it, or will not get it.
function names.claimed(base, _, queue, home)
    local other = string.match(redis.call('HGET', base .. ':queues', queue) or '', '^(.*) %d+$')
    if other == home then
        redis.call('HSET', base .. ':queues', queue, home .. ' 0')
    end
    return {}
end

