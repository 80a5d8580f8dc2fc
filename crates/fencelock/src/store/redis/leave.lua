-- leave: takes tickets out of their lines and lets in whoever fits then.
-- KEYS  three for each ticket (see line.lua), the watch key
-- ARGV  the id of each ticket
-- Says  for each ticket: 1 it was there, 0 it was not

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local hash

-- The short way out for a ticket that is alone: HMGET, HDEL, EXISTS.
if #ARGV == 1 then
  hash = redis.call('HMGET', KEYS[1], 'v', 'n', 'p', 's', 'r', 'c', 'i', 't', 'f', 'e', 'o', ARGV[1])
  if hash[1] == '1' and hash[4] == ARGV[1] and hash[5] then
    local expiry = tonumber(string.match(hash[5], '^%d+ %d+ (%d+) ') or 0)
    -- Keys that would stay for long go the other way.
    if expiry > now and tonumber(hash[10] or 0) * 1000 < now + 240000000 then
      redis.call('HDEL', KEYS[1], 's', 'r')
      if tonumber(hash[11] or 0) > now or (#KEYS == 4 and redis.call('EXISTS', KEYS[4]) == 1) then
        local said = KEYS[1] .. ' ' .. (redis.call('HGET', KEYS[1], 'l') or '')
        redis.call('PUBLISH', KEYS[1] .. ':changes', said)
        redis.call('PUBLISH', 'fencelock:changes', said)
      end
      return {1}
    end
  end
end

--<line>

local answers = {}
for at = 1, #ARGV do
  local line = read(at * 3 - 2, ARGV[at], hash)
  sweep(line, ARGV[at])
  answers[at] = line.own and 1 or 0
  if line.own then drop(line, ARGV[at], line.own) end
  admit(line)
  settle(line)
  if line.c <= 0 and line.e > 0 then
    -- Nothing is left but the last number, for as long as it can be of use.
    local floor = math.ceil((math.max(now, line.n, line.o) + FLOOR) / 1000)
    if line.e > floor + 4 * FLOOR / 1000 then
      redis.call('HDEL', line.key, 'e')
      redis.call('PEXPIREAT', line.key, text(floor))
    end
  end
end
return answers
