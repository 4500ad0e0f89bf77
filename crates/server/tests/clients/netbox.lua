-- Plays the scenario with the `net.box` of Tarantool: tarantool netbox.lua SCENARIO HOST PORT.

local fiber = require('fiber')
local fio = require('fio')
local json = require('json')
local net_box = require('net.box')

local scenario, host, port = arg[1], arg[2], arg[3]

local Player = {}
Player.__index = Player

-- Values of an answer in a list that knows its length, as nil may be one of them.
local function list(...)
    return { n = select('#', ...), ... }
end

function Player:connect(name, user, password)
    local connection = net_box.connect(host, port, {
        user = user,
        password = password,
        wait_connected = 10,
    })
    if connection.state ~= 'active' then
        -- It tells the text of the refusal but not its code.
        error({ message = connection.error })
    end
    self.connections[name] = connection
end

function Player:connection(name)
    if self.connections[name] == nil then
        self:connect(name)
    end
    return self.connections[name]
end

-- Puts in what earlier steps kept.
function Player:filled(value)
    if type(value) ~= 'table' then
        return value
    end
    if value.kept ~= nil then
        return self.kept[value.kept]
    end
    local filled = setmetatable({}, getmetatable(value))
    for key, item in pairs(value) do
        filled[key] = self:filled(item)
    end
    return filled
end

local actions = {}

function actions.connect(self, step)
    self:connect(step.on, step.user, step.password)
end

function actions.close(self, step)
    self.connections[step.on]:close()
    self.connections[step.on] = nil
end

function actions.call(self, step)
    return list(self:connection(step.on):call(step['function'], self:filled(step.args)))
end

function actions.eval(self, step)
    return list(self:connection(step.on):eval(step.expression, self:filled(step.args)))
end

function actions.select(self, step)
    local space = self:connection(step.on).space[step.space]
    assert(space ~= nil, 'there is no such space')
    return list(#space:select())
end

function actions.start(self, step)
    local connection, args = self:connection(step.on), self:filled(step.args)
    local done = fiber.channel(1)
    fiber.create(function()
        local ok, answer = pcall(function()
            return list(connection:call(step['function'], args))
        end)
        done:put({ ok = ok, answer = answer })
    end)
    self.started[step.label] = done
    -- The server takes the requests of a connection in order.
    connection:call('queue.state')
end

function actions.await(self, step)
    local done = self.started[step.label]:get(30)
    assert(done ~= nil, 'no answer came')
    if not done.ok then
        error(done.answer)
    end
    return done.answer
end

-- Whether two values are the same; nil of JSON and of MessagePack are.
local function same(one, other)
    if type(one) ~= 'table' or type(other) ~= 'table' then
        return one == other
    end
    for key, item in pairs(one) do
        if not same(item, other[key]) then
            return false
        end
    end
    for key, item in pairs(other) do
        if item ~= nil and one[key] == nil then
            return false
        end
    end
    return true
end

local function expected(values)
    local listed = { n = #values }
    for key, value in ipairs(values) do
        listed[key] = value
    end
    return listed
end

-- Does the step; what is wrong with its answer, or nothing.
local function wrong(player, step)
    local ok, answer = pcall(actions[step['do']], player, step)
    if not ok then
        local text = tostring(type(answer) == 'string' and answer or answer.message)
        local code = type(answer) ~= 'string' and answer.code or nil
        local right = step.fails ~= nil
            and text:find(step.fails[2], 1, true) ~= nil
            and (code == nil or code == step.fails[1])
        return not right and ('fails with %s: %s'):format(code, text) or nil
    end
    if step.keeps ~= nil then
        player.kept[step.keeps] = answer[1]
    end
    local fits = step.gives == nil or same(answer, expected(player:filled(step.gives)))
    if fits and step.fails == nil then
        return nil
    end
    return 'gives ' .. json.encode(answer)
end

local file = assert(fio.open(scenario))
local cases = json.decode(file:read())
file:close()
for _, case in ipairs(cases) do
    local player = setmetatable({ connections = {}, started = {}, kept = {} }, Player)
    for _, step in ipairs(case.steps) do
        local complaint = wrong(player, step)
        if complaint ~= nil then
            io.stderr:write(('%s: %s\n%s\n'):format(case.name, json.encode(step), complaint))
            os.exit(1)
        end
    end
    for _, connection in pairs(player.connections) do
        connection:close()
    end
    print('ok: ' .. case.name)
end
print(('played %d cases'):format(#cases))
os.exit(0)
