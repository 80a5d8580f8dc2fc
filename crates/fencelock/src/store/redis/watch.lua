-- watch: from now on, for a while, changes of this line are published.
-- KEYS  three (see line.lua), the watch key
-- ARGV  for how long, us
-- Says  1

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--<line>

local line = open(1, '')
local until_when = now + tonumber(ARGV[1])
redis.call('HSET', line.key, 'v', '1', 'o', text(math.max(line.o, until_when)))
keep(line, until_when)
return 1
