-- upgrade: a ticket that is alone is replaced by one with a new id, a new number and all of the capacity.
-- KEYS  of the line, see line.lua
-- ARGV  id, new id
-- Says  "0" gone, "1 0 number" inside, "4 now record" somebody else is in the line

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local time = string.format('%016d', now)

--<line>

local line = open(1, ARGV[1])
local done = line.sole == ARGV[2] and line.first or line.long and call('HGET', line.hash, ARGV[2])
if done then return '1 0 ' .. sub(done, 1, 16) end
local record = line.own
if not record then return '0' end
-- Lapsed ones that wait are no company.
while line.w > 0 do
  local id = call('ZRANGE', line.queue, '0', '0')[1]
  local first = id and call('HGET', line.hash, id)
  if id and not first then
    call('ZREM', line.queue, id)
  elseif not id or expiry_of(first) > now then
    break
  else
    drop(line, id, first)
  end
end
if line.m + line.w > 1 then
  settle(line)
  return '4 ' .. time .. ' ' .. (head(line, ARGV[1]) or '')
end
line.n = math.max(line.n + 1, now)
local inbox_owner = sub(record, 118)
record = text(line.n) .. sub(record, 17, 51) .. time .. ' ' .. ARGV[2] .. ' ' .. string.format('%07d %07d ', line.p, line.p)
  .. string.gsub(inbox_owner, '^(%d+ %d+ %d %S+) %S+', '%1 exclusive', 1)
alone(line, ARGV[2], record)
line.del, line.changed, line.said = {}, true, record
settle(line)
return '1 0 ' .. text(line.n)
