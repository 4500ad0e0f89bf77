function regate() end
function gate_new() end
function tick_semaphores() return 0 end
function next_semaphore() return FAR end
function ask_semaphore() return refuse('invalid', 'not yet') end
function flush_semaphores() end
