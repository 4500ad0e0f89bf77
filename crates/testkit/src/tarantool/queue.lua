-- A small stand-in for tarantool/queue, written for these tests from a description of its functions: what it answers and refuses, not how it
-- does it. Only what is read here is there; time does nothing.
local tubes, owners, state = {}, {}, 'RUNNING'
local queue = { tube = setmetatable({}, { __index = tubes }) }
local LETTERS = { 'ready', 'taken', 'buried', 'delayed' }
local COUNTERS = { 'ack', 'bury', 'delete', 'kick', 'put', 'release', 'take', 'touch', 'ttl', 'ttr', 'delay' }
local NAMES = { r = 'ready', t = 'taken', ['!'] = 'buried', ['~'] = 'delayed' }
local CENTURY = 3153600000
local Tube = {}
Tube.__index = Tube

local function shown(self, task, state)
    return box.tuple.new({ task[1], state or task[2], task[self.data] })
end

local function now()
    return require('clock').time64() / 1000
end

function Tube:find(id)
    local task = self.space:get(id)
    if not task then
        error('Task ' .. tostring(id) .. ' not found')
    end
    return task
end

function Tube:owned(id)
    local owner = owners[self.name .. ':' .. tostring(id)]
    if owner ~= box.session.id() then
        error('Task was not taken')
    end
    return self:find(id)
end

function Tube:set(id, state)
    owners[self.name .. ':' .. tostring(id)] = nil
    return self.space:update(id, { { '=', 2, state } })
end

function Tube:count(call)
    self.calls[call] = self.calls[call] + 1
end

function Tube:put(data, opts)
    opts = opts or {}
    local capacity = self.opts.capacity or 0
    if capacity ~= 0 and self.space:len() >= capacity then
        return nil
    end
    local last = self.space.index[0]:max()
    local id, state = last and last[1] + 1 or 0, 'r'
    local ttl = (opts.ttl or self.opts.ttl or CENTURY) * 1000000
    local at = now() + ttl
    if self.kind:match('ttl') and opts.delay and opts.delay > 0 then
        state, at = '~', now() + opts.delay * 1000000
    end
    local row = { id, state }
    if self.kind:match('ttl') then
        local ttr = (opts.ttr or self.opts.ttr or CENTURY) * 1000000
        row = { id, state, at, ttl, ttr, opts.pri or self.opts.pri or 0, now() }
    end
    if self.kind:match('utube') then
        row[#row + 1] = tostring(opts.utube)
    end
    row[#row + 1] = data
    self.data = #row
    self:count('put')
    return shown(self, self.space:insert(row))
end

function Tube:take()
    for _, task in self.space.index.status:pairs({ 'r' }) do
        owners[self.name .. ':' .. tostring(task[1])] = box.session.id()
        self:count('take')
        return shown(self, self.space:update(task[1], { { '=', 2, 't' } }))
    end
end

function Tube:ack(id)
    local task = self:owned(id)
    owners[self.name .. ':' .. tostring(id)] = nil
    self.space:delete(id)
    self:count('ack')
    self.done = self.done + 1
    return shown(self, task, '-')
end

function Tube:release(id, opts)
    self:owned(id)
    self:count('release')
    return shown(self, self:set(id, opts and opts.delay and opts.delay > 0 and '~' or 'r'))
end

function Tube:touch(id)
    local task = self:owned(id)
    self:count('touch')
    return shown(self, task)
end

function Tube:bury(id)
    self:find(id)
    self:count('bury')
    return shown(self, self:set(id, '!'))
end

function Tube:kick(limit)
    local kicked = 0
    for _, task in ipairs(self.space.index.status:select({ '!' }, { limit = limit })) do
        self:set(task[1], 'r')
        kicked = kicked + 1
    end
    if self.kind == 'utube' and kicked < limit then
        -- As version 1.5.0 does.
        box.begin()
    end
    return kicked
end

function Tube:delete(id)
    local task = self:find(id)
    self.space:delete(id)
    self:count('delete')
    self.done = self.done + 1
    return shown(self, task, '-')
end

function Tube:truncate()
    self.space:truncate()
end

function Tube:release_all()
    for _, task in ipairs(self.space.index.status:select({ 't' })) do
        self:set(task[1], 'r')
    end
end

function Tube:drop()
    if self.space.index.status:count({ 't' }) > 0 then
        error('There are taken tasks in the tube')
    end
    box.space._queue:delete(self.name)
    self.space:drop()
    tubes[self.name] = nil
    return true
end

-- While it is not running it does nothing and answers nothing.
for name, method in pairs(Tube) do
    if not ({ __index = 1, find = 1, owned = 1, set = 1, count = 1 })[name] then
        Tube[name] = function(...)
            if state == 'RUNNING' then
                return method(...)
            end
        end
    end
end

function queue.state(new)
    state = new or state
    return state
end

function queue.create_tube(name, kind, opts)
    local space = box.schema.space.create(name)
    space:create_index('task_id', { parts = { { 1, 'unsigned' } } })
    local status = kind:match('ttl') and { { 2, 'string' }, { 6, 'unsigned' }, { 1, 'unsigned' } } or { { 2, 'string' }, { 1, 'unsigned' } }
    space:create_index('status', { parts = status })
    local last = box.space._queue.index.tube_id:max()
    box.space._queue:insert({ name, last and last[2] + 1 or 0, name, kind, opts })
    tubes[name] = setmetatable({ name = name, kind = kind, opts = opts, space = space, calls = {}, done = 0 }, Tube)
    for _, call in ipairs(COUNTERS) do
        tubes[name].calls[call] = 0
    end
    tubes[name].data = ({ fifo = 3, utube = 4, fifottl = 8, limfifottl = 8, utubettl = 9 })[kind]
    return tubes[name]
end

function queue.statistics(name)
    local tube, tasks = tubes[name], { total = 0, done = tubes[name].done }
    for _, state in ipairs(LETTERS) do
        tasks[state] = 0
    end
    for _, task in tube.space:pairs() do
        tasks[NAMES[task[2]]] = tasks[NAMES[task[2]]] + 1
        tasks.total = tasks.total + 1
    end
    return { tasks = tasks, calls = tube.calls }
end

box.schema.space.create('_queue'):create_index('tube', { parts = { { 1, 'string' } } })
box.space._queue:create_index('tube_id', { parts = { { 2, 'unsigned' } } })
-- What a connection took goes back with it.
box.session.on_disconnect(function()
    for key, owner in pairs(owners) do
        if owner == box.session.id() then
            local name, id = key:match('^(.*):(%d+)$')
            tubes[name]:set(tonumber(id), 'r')
        end
    end
end)
rawset(_G, 'queue', queue)
return true
