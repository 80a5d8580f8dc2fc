-- leave: takes tickets out of their lines and lets in whoever fits then.
-- KEYS  of each ticket's line, see line.lua
-- ARGV  the id of each ticket
-- Says  for each ticket (for one alone: not in an array): 1 it was there, 0 it was not

local short

-- The short way out for a ticket that is alone: GET, SET, EXISTS. The key is there, so its lease has not ended.
if #ARGV == 1 then
  local key = KEYS[1]
  short = redis.call('GET', key)
  if short and string.sub(short, 20, 51) == ARGV[1] then
    -- Memory that is short must not keep anybody from leaving.
    if redis.pcall('SET', key, string.sub(short, 1, 18), 'PX', '60000').err then redis.call('DEL', key) end
    if redis.call('EXISTS', WATCH) == 1 then
      local said = 'f ' .. key .. ' ' .. string.sub(short, 53)
      redis.call(PUBLISH, key .. ':changes', said)
      if EVERYWHERE then redis.call(PUBLISH, EVERYWHERE, said) end
    end
    return 1
  end
end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local time = string.format('%016d', now)

--<line>

local answers = {}
for at = 1, #ARGV do
  local line = read(at, ARGV[at], short)
  sweep(line)
  answers[at] = line.own and 1 or 0
  if line.own then drop(line, ARGV[at], line.own) end
  admit(line)
  settle(line)
end
if #answers == 1 then return answers[1] end
return answers
