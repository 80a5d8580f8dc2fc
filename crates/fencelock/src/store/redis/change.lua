-- change: lowers a ticket's weight, says something new of it, and lets in whoever fits then.
-- KEYS  four (see line.lua), the watch key
-- ARGV  id, new weight (or 0: as it is), 1 if there is a new note or 0, the new note
-- Says  1 it is there, 0 it is not

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--<line>

local line = open(1, ARGV[1])
local ticket = line.own
if not ticket then return 0 end
local weight = tonumber(ARGV[2])
local mode, inbox, owner, note = string.match(ticket.facts, '^(%S+) (%S+) (%S+) ?(.*)$')
if weight > 0 and weight < ticket.weight then
  local less = ticket.weight - weight
  ticket.weight, line.t = weight, line.t - less
  if ticket.token <= line.f then line.i = line.i - less end
  mode = line.p == 1048576 and 'shared' or 'permits'
end
if ARGV[3] == '1' then note = ARGV[4] end
ticket.facts = mode .. ' ' .. inbox .. ' ' .. owner .. ' ' .. note
if line.sole then
  alone(line, ARGV[1], ticket)
else
  redis.call('HSET', line.hash, ARGV[1], record(ticket))
  line.dirty = true
end
line.changed, line.facts = true, ticket.facts
admit(line)
settle(line)
return 1
