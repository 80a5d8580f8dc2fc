-- change: lowers a ticket's weight, says something new of it, and lets in whoever fits then.
-- KEYS  of the line, see line.lua
-- ARGV  id, new weight (or 0: as it is), 1 if there is a new note or 0, the new note
-- Says  1 it is there, 0 it is not

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local time = string.format('%016d', now)

--<line>

local id, weight = ARGV[1], tonumber(ARGV[2])
local line = open(1, id)
local record = line.own
if not record then return 0 end
local expiry, had = expiry_of(record), weight_of(record)
local facts, mode, owner, note = string.match(record, '^(%d+ %d+ %d %S+) (%S+) (%S+) ?(.*)$', 118)
if not facts then damaged() end
if weight > 0 and weight < had then
  mode = line.p == 1048576 and 'shared' or 'permits'
  if line.long and is_inside(record) then
    call('ZCARD', line.lapse)
    line.i = line.i - had + weight
    if line.holder == id then
      line.holder = ''
      share(line, id, expiry)
    end
  end
  line.freed = true
else
  weight = had
end
if ARGV[3] == '1' then note = ARGV[4] end
record = sub(record, 1, 101) .. string.format('%07d', weight) .. sub(record, 109, 117) .. facts .. ' ' .. mode .. ' ' .. owner
  .. ' ' .. note
line.own = record
if line.sole then alone(line, id, record) else call('HSET', line.hash, id, record) end
line.changed, line.said = true, record
admit(line)
settle(line)
return 1
