-- An instance for tests: its port, whether it begins read-only, and settings as pairs of names and values. The environment has the
-- passwords of its users.
local password, admin_password = os.getenv('TASKYARD_TEST_PASSWORD'), os.getenv('TASKYARD_TEST_ADMIN_PASSWORD')
local port, read_only = arg[1], arg[2] == 'replica'
local settings = { listen = '127.0.0.1:' .. port, pid_file = 'pid', log = 'log', log_level = 4, wal_mode = 'fsync',
    memtx_memory = 1024 * 1024 * 1024, read_only = read_only, replication_timeout = 0.2, replication_connect_timeout = 10,
    checkpoint_interval = 0, force_recovery = false }
for place = 3, #arg, 2 do
    local value = arg[place + 1]
    settings[arg[place]] = tonumber(value) or value
end
if settings.replication then
    local instances = {}
    for one in string.gmatch(settings.replication, '[^;]+') do
        instances[#instances + 1] = one
    end
    settings.replication = instances
end
box.cfg(settings)
if not box.info.ro then
    box.once('users', function()
        box.schema.user.passwd('admin', admin_password)
        box.schema.user.create('taskyard', { password = password })
        box.schema.user.grant('taskyard', 'read,write,execute,create', 'universe')
        box.schema.user.create('worker', { password = password })
        box.schema.user.grant('worker', 'read,write,execute', 'universe')
        box.schema.user.create('stranger', { password = password })
    end)
end
rawset(_G, 'ready', true)
