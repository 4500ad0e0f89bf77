-- Writes a tube as the second version kept it, for a test of what becomes of that.
local base = KEYS[1]
local tasks = redis.call('HGETALL', base .. ':t')
for place = 1, #tasks, 2 do
    local id, record = tasks[place], tasks[place + 1]
    local state, moment, attempts, pri, created, expires, ttr, previous, tail, bytes =
        struct.unpack('<Bddc8ddddI4I4', record)
    local flags, lease, start, session = 0, string.rep('\0', 8), 0, string.rep('\0', 16)
    local delivery, _ = redis.call('HGET', base .. ':x', id), nil
    if delivery then
        state, flags, _, moment, session, start, lease = 1, struct.unpack('<BBdc16dc8', delivery)
    end
    local body = string.sub(record, 66 + tail)
    if body ~= '' then
        redis.call('HSET', base .. ':b', id, body)
    end
    redis.call('HSET', base .. ':t', id, struct.pack('<BBI4I4c8dddddc8dc16', state, flags, attempts, bytes, pri, created,
        expires, ttr, previous, moment, lease, start, session) .. string.sub(record, 66, 65 + tail))
end
local taken = redis.call('HKEYS', base .. ':x')
redis.call('DEL', base .. ':x')
for _, id in ipairs(taken) do
    redis.call('SADD', base .. ':x', id)
end
for _, member in ipairs(redis.call('ZRANGE', base .. ':w', 0, -1)) do
    if #member ~= 8 then
        redis.call('ZREM', base .. ':w', member)
    end
end
redis.call('RENAME', base .. ':m', base .. ':n')
return ''
