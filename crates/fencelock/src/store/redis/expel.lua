-- expel: puts out the ticket with this number, tells its client, and lets in whoever fits then.
-- KEYS  of the line, see line.lua
-- ARGV  number, in 16 digits
-- Says  1 it was there, 0 it was not

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local time = string.format('%016d', now)

--<line>

local line = open(1, '')
local function find(ids)
  for from = 1, #ids, 1000 do
    for at, record in ipairs(call('HMGET', line.hash, unpack(ids, from, math.min(from + 999, #ids)))) do
      if record and sub(record, 1, 16) == ARGV[1] then return ids[from + at - 1], record end
    end
  end
end
local id, record
if line.sole then
  if sub(line.first, 1, 16) == ARGV[1] then id, record = line.sole, line.first end
elseif line.long then
  id, record = find(call('ZRANGEBYSCORE', line.queue, ARGV[1], ARGV[1]))
  if not id and line.holder ~= '' then id, record = find({line.holder}) end
  if not id and line.holder == '' then id, record = find(call('ZRANGE', line.lapse, '0', '-1')) end
end
if not id then return 0 end
local lapsed = expiry_of(record) <= now
drop(line, id, record)
admit(line)
settle(line)
-- Whoever is inside need not listen on the line's own channel (a cluster has one): told on the client's, by all nodes.
local inbox = string.gsub(string.match(record, '^%d+ %d+ %d (%S+)', 118) or damaged(), '{.*}:', '')
call('PUBLISH', inbox, 'x ' .. id)
return lapsed and 0 or 1
