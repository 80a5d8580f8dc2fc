-- expel: puts out the ticket with this number, tells its client, and lets in whoever fits then.
-- KEYS  four (see line.lua), the watch key
-- ARGV  number
-- Says  1 it was there, 0 it was not

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--<line>

local line = open(1, '')
local id = line.sole and text(line.first.token) == ARGV[1] and line.sole
if line.indexed then id = redis.call('ZRANGEBYSCORE', line.queue, ARGV[1], ARGV[1])[1] end
local found = id and (line.sole and line.first or redis.call('HGET', line.hash, id))
if not found then return 0 end
local ticket = type(found) == 'string' and parse(found) or found
drop(line, id, ticket)
admit(line)
settle(line)
-- Whoever is inside need not listen on the line's own channel (a cluster has one): told on the client's, by all nodes.
local inbox = string.gsub(string.match(ticket.facts, '^%S+ (%S+)'), '{.*}:', '')
redis.call('PUBLISH', inbox, 'x ' .. id)
return 1
