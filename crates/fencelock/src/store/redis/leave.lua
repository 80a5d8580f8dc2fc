-- leave: takes tickets out of their lines and lets in whoever fits then.
-- KEYS  of each ticket's line, see line.lua
-- ARGV  the id of each ticket
-- Says  for each ticket (for one alone: not in an array): 1 it was there, 0 it was not

local short

-- The short way out for a ticket that is alone: GET, SET, EXISTS. It is there, so nobody came after it, and its lease has
-- not ended, or nobody has looked since: it was the last one either way.
if #ARGV == 1 then
  local key = KEYS[1]
  short = redis.call('GET', key)
  if short and string.sub(short, 31, 62) == ARGV[1] then
    local done
    if string.byte(short, 20) ~= 45 then
      done = redis.pcall('SET', key, string.sub(short, 1, 29), 'KEEPTTL')
    else
      done = redis.pcall('PSETEX', key, '60000', string.sub(short, 1, 18) .. ' 0000000000')
    end
    -- Memory that is short must not keep anybody from leaving.
    if done.err then redis.call('DEL', key) end
    if redis.call('EXISTS', WATCH) == 1 then
      local said = 'f ' .. key .. ' ' .. string.sub(short, 64)
      redis.call(PUBLISH, key .. ':changes', said)
      if EVERYWHERE then redis.call(PUBLISH, EVERYWHERE, said) end
    end
    return 1
  end
end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local time = string.format('%016d', now)

-- The short way to hand over: from somebody who has all of the capacity to somebody who wants all of it. What is unusual in
-- any way goes the long way, which is the rule. GET, TIME, HMGET, ZCARD, ZPOPMIN, HGET, HDEL, HSET, PUBLISH, EXISTS.
if short == false then
  local sub, id, hash, queue = string.sub, ARGV[1], KEYS[2] or KEYS[1] .. ':t', KEYS[3] or KEYS[1] .. ':q'
  local found = redis.call('HMGET', hash, 's', id)
  local state = found[1]
  if state and found[2] and #state == 97 and string.byte(state) == 49 and sub(state, 66) == id then
    local n, p, i, m, w, x, e, y = struct.unpack('>dddddddd', state, 2)
    if x > now and w > 0 and redis.call('ZCARD', queue) >= w then
      local next = redis.call('ZPOPMIN', queue)[1]
      local record = redis.call('HGET', hash, next)
      local expiry = record and tonumber(sub(record, 18, 33))
      local inbox = expiry and expiry > now and (w == 1 or expiry >= y) and tonumber(sub(record, 102, 108)) == p
        and string.match(record, '^%d+ %d+ %d (%S+)', 118)
      if inbox then
        redis.call('HDEL', hash, id)
        redis.call('HSET', hash, 's', '1' .. struct.pack('>dddddddd', n, p, i, m, w - 1, expiry, e, w > 1 and y or 0) .. next,
          next, sub(record, 1, 51) .. time .. sub(record, 68))
        redis.call(PUBLISH, inbox, 'g ' .. next .. ' ' .. sub(record, 1, 16))
        if redis.call('EXISTS', WATCH) == 1 then
          local said = 'f ' .. KEYS[1] .. ' ' .. sub(record, 102)
          redis.call(PUBLISH, KEYS[1] .. ':changes', said)
          if EVERYWHERE then redis.call(PUBLISH, EVERYWHERE, said) end
        end
        return 1
      end
      -- As it was.
      if record then redis.call('ZADD', queue, sub(record, 1, 16), next) end
    end
  end
end

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
