-- inspect: who is in a line.
-- KEYS  four for each line (see line.lua), the watch key
-- ARGV  for each line: 1 for all of its tickets, 0 for the first only
-- Says  for each line: now, capacity, number of the last one inside, how many are inside, how many there are, and the
--       records

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--<line>

local answers = {}
for at = 1, #ARGV do
  local line = open(at * 4 - 3, '')
  local inside = line.c
  if line.indexed then inside = redis.call('ZCOUNT', line.queue, '-inf', text(line.f)) end
  local answer = {text(now), text(line.c > 0 and line.p or 0), text(line.f), text(inside), text(line.c)}
  if line.sole then
    answer[6] = record(line.first)
  elseif line.indexed and ARGV[at] == '0' then
    answer[6] = head(line) or nil
  elseif line.indexed then
    local ids = redis.call('ZRANGE', line.queue, 0, -1)
    for from = 1, #ids, 1000 do
      local found = redis.call('HMGET', line.hash, unpack(ids, from, math.min(from + 999, #ids)))
      for _, one in ipairs(found) do
        if one then answer[#answer + 1] = one end
      end
    end
  end
  answers[at] = answer
end
return answers
