-- inspect: who is in a line.
-- KEYS  of each line, see line.lua
-- ARGV  for each line: 1 for all of its tickets, 0 for the first inside only
-- Says  for each line: now, capacity, how many are inside, how many wait, and the records, without their ids

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local time = string.format('%016d', now)

--<line>

local answers = {}
for at = 1, #ARGV do
  local line = open(at, '')
  local records = {}
  if line.sole then
    records[1] = shown(line.first)
  elseif line.long then
    local all = call('HGETALL', line.hash)
    line.w = 0
    for field = 1, #all, 2 do
      local record = all[field + 1]
      if #all[field] == 32 and expiry_of(record) > now then
        local inside = is_inside(record)
        if not inside then line.w = line.w + 1 end
        if ARGV[at] == '1' then
          records[#records + 1] = shown(record)
        elseif inside and (not records[1] or record < records[1]) then
          records[1] = record
        end
      end
    end
    if ARGV[at] == '0' and records[1] then records[1] = shown(records[1]) end
  end
  local capacity = line.m + line.w > 0 and line.p or 0
  local answer = {time, text(capacity), text(line.m), text(line.w)}
  for _, record in ipairs(records) do answer[#answer + 1] = record end
  answers[at] = answer
end
return answers
