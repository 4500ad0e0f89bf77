-- Modules and functions of Tarantool and Lua that the other files use: a local name is quicker than a global one.

local fiber, clock = require('fiber'), require('clock')
local box, math, string, table, ipairs, pairs, tonumber, type, unpack = box, math, string, table, ipairs, pairs, tonumber, type, unpack

