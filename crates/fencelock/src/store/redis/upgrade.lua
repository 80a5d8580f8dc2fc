-- upgrade: a ticket that is alone is replaced by one with a new id, a new number and all of the capacity.
-- KEYS  four (see line.lua), the watch key
-- ARGV  id, new id
-- Says  "0" gone, "1 0 number" inside, "4 now record" somebody else is in the line

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--<line>

local line = open(1, ARGV[1])
local done = line.sole == ARGV[2] and line.first or line.indexed and redis.call('HGET', line.hash, ARGV[2])
if done then
  if type(done) == 'string' then done = parse(done) end
  return '1 0 ' .. text(done.token)
end
local ticket = line.own
if not ticket then return '0' end
if line.c > 1 then return '4 ' .. text(now) .. ' ' .. (head(line, ARGV[1]) or '') end
ticket.token, ticket.weight, ticket.admitted = math.max(line.n + 1, now), line.p, text(now)
ticket.facts = string.gsub(ticket.facts, '^%S+', 'exclusive', 1)
line.n = ticket.token
alone(line, ARGV[2], ticket)
line.changed, line.facts = true, ticket.facts
settle(line)
return '1 0 ' .. text(ticket.token)
