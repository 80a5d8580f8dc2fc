-- leave: takes tickets out of their lines and lets in whoever fits then.
-- KEYS  four for each ticket (see line.lua), the watch key
-- ARGV  the id of each ticket
-- Says  for each ticket: 1 it was there, 0 it was not

local short

-- The short way out for a ticket that is alone: GET, SET, EXISTS. The key is there, so its lease has not ended.
if #ARGV == 1 then
  short = redis.call('GET', KEYS[1])
  local last, id = string.match(short or '', '^1 (%d+) %d+ (%x+) ')
  if id == ARGV[1] then
    -- Memory that is short must not keep anybody from leaving.
    if redis.pcall('SET', KEYS[1], '1 ' .. last, 'PX', '60000').err then redis.call('DEL', KEYS[1]) end
    if #KEYS == 5 and redis.call('EXISTS', KEYS[5]) == 1 then
      local said = KEYS[1] .. ' ' .. string.match(short, '^%S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ (.*)$')
      redis.call(PUBLISH, KEYS[1] .. ':changes', said)
      if EVERYWHERE then redis.call(PUBLISH, EVERYWHERE, said) end
    end
    return {1}
  end
end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--<line>

local answers = {}
for at = 1, #ARGV do
  local line = read(at * 4 - 3, ARGV[at], short)
  sweep(line, ARGV[at])
  answers[at] = line.own and 1 or 0
  if line.own then drop(line, ARGV[at], line.own) end
  admit(line)
  settle(line)
end
return answers
