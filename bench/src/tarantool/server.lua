-- The Tarantool of the benchmark: its port; everything else is as it comes, but for memory and the log of what it does.
box.cfg({ listen = '127.0.0.1:' .. arg[1], memtx_memory = 1024 * 1024 * 1024, log = 'log', checkpoint_interval = 0 })
box.schema.user.create('bench', { password = 'bench', if_not_exists = true })
box.schema.user.grant('bench', 'read,write,execute,create,alter,drop', 'universe', nil, { if_not_exists = true })
-- The program that started it waits for this line.
require('fio').open('ready', { 'O_CREAT', 'O_WRONLY' }, tonumber('644', 8)):close()
