-- enter: joins lines, all or none.
-- KEYS  of each ticket's line, see line.lua
-- ARGV  two for each ticket: its lease in ms, its entry (see line.lua)
-- Says  for each ticket (for one alone: not in an array): "1 number" inside, with the lease it asked for; "1 lease number"
--       inside, "2 lease number next-lapse" waiting, "3 capacity" mismatch, "4 now record" no room, "5" not entered because
--       of another one

local clock = redis.call('TIME')
local short

-- The short way into an empty line: TIME, GET, SET, EXISTS (and one more EXISTS for a name that is new). Numbers of 16
-- digits, which they have until the year 2286, are compared as they stand: that is cheaper than to make numbers of them. So
-- is the time until which the key lives long enough as it is: to set when it expires costs as much as to set the key.
if #ARGV == 2 then
  local us = clock[2]
  if #us < 6 then us = string.rep('0', 6 - #us) .. us end
  local empty = '1 ' .. clock[1] .. us
  local key = KEYS[1]
  short = redis.call('GET', key)
  local free
  if short then
    free = #short == 29 and #empty == 18 and string.byte(short) == 49 and short < empty
  elseif EACH == 1 then
    free = #empty == 18 and redis.call('EXISTS', key .. ':t', key .. ':q', key .. ':x') == 0
  else
    free = #empty == 18 and redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) == 0
  end
  if free then
    if #ARGV[1] > 5 then
      redis.call('PSETEX', key, ARGV[1] + 60000, empty .. ' ---------- ' .. ARGV[2])
    elseif not short then
      redis.call('PSETEX', key, ARGV[1] + 60000, empty .. ' 0000000000 ' .. ARGV[2])
    else
      local lives = string.sub(short, 20)
      if clock[1] <= lives then
        redis.call('SET', key, empty .. ' ' .. lives .. ' ' .. ARGV[2], 'KEEPTTL')
      else
        redis.call('PSETEX', key, '220000', empty .. ' ' .. string.format('%010d', clock[1] + 59) .. ' ' .. ARGV[2])
      end
    end
    if redis.call('EXISTS', WATCH) == 1 then
      local said = 'e ' .. key .. ' ' .. string.sub(ARGV[2], 34)
      redis.call(PUBLISH, key .. ':changes', said)
      if EVERYWHERE then redis.call(PUBLISH, EVERYWHERE, said) end
    end
    return empty
  end
end

local now = clock[1] * 1000000 + clock[2]
local time = string.format('%016d', now)

-- The short way to the end of a queue: behind somebody who has all of the capacity and others who wait. What is unusual in
-- any way goes the long way, which is the rule. TIME, GET, EXISTS, HMGET, ZCARD, ZADD, HSET, EXISTS.
if short == false then
  local sub, entry, hash, queue = string.sub, ARGV[2], KEYS[2] or KEYS[1] .. ':t', KEYS[3] or KEYS[1] .. ':q'
  local id = sub(entry, 1, 32)
  local found = redis.call('HMGET', hash, 's', id)
  local state = found[1]
  if state and #state == 97 and string.byte(state) == 49 and not found[2] then
    local n, p, i, m, w, x, e, y = struct.unpack('>dddddddd', state, 2)
    local waiting, queues = string.match(entry, '^%d+ (%d+) (%d)', 50)
    local number = n < now and now or n + 1
    if queues == '1' and w > 0 and x > now and tonumber(sub(entry, 42, 48)) == p
      and math.max(now + waiting, number) + 60000000 <= e * 1000 and redis.call('ZCARD', queue) >= w then
      local text = number == now and time or string.format('%016d', number)
      redis.call('ZADD', queue, text, id)
      redis.call('HSET', hash, 's', '1' .. struct.pack('>dddddddd', number, p, i, m, w + 1, x, e, x > y and x or y) .. sub(state, 66),
        id, text .. ' ' .. string.format('%016d', now + waiting) .. ' ' .. time .. ' 0000000000000000 ' .. entry)
      if redis.call('EXISTS', WATCH) == 1 then
        local said = 'e ' .. KEYS[1] .. ' ' .. sub(entry, 34)
        redis.call(PUBLISH, KEYS[1] .. ':changes', said)
        if EVERYWHERE then redis.call(PUBLISH, EVERYWHERE, said) end
      end
      return '2 ' .. waiting .. ' ' .. text .. ' ' .. string.format('%d', x - now)
    end
  end
end

--<line>

local tickets = {}
local answers = {}
local refused = false
for at = 1, #ARGV / 2 do
  local entry = ARGV[at * 2]
  local id = sub(entry, 1, 32)
  local lease, waiting, queue = string.match(entry, '^(%d+) (%d+) (%d)', 50)
  local ticket = {id = id, entry = entry, weight = tonumber(sub(entry, 34, 40)), capacity = tonumber(sub(entry, 42, 48)),
    lease = tonumber(lease), waiting = tonumber(waiting)}
  local line = open(at, id, short)
  ticket.line = line
  tickets[at] = ticket
  answers[at] = '5'
  if line.own or line.m == 0 and line.w == 0 then
    -- There already, or nobody is.
  elseif line.p ~= ticket.capacity then
    answers[at] = '3 ' .. text(line.p)
    refused = true
  elseif queue == '0' and (line.w > 0 or line.i + ticket.weight > line.p) then
    -- Whoever waits does not fit, so there is no room behind him either.
    answers[at] = '4 ' .. time .. ' ' .. (head(line) or '')
    refused = true
  elseif line.long and ticket.weight < line.p then
    call('ZCARD', line.lapse)
  end
end

for at, ticket in ipairs(refused and {} or tickets) do
  local line, id, lease = ticket.line, ticket.id, ticket.lease
  if line.own then
    if not is_inside(line.own) then lease = ticket.waiting end
    lease = extend(line, id, line.own, lease)
    if not is_inside(line.own) then told_of(line) end
    settle(line)
    answers[at] = place(line, line.own, lease)
  else
    line.n = math.max(line.n + 1, now)
    local number = text(line.n)
    if line.m == 0 and line.w == 0 then
      line.p = ticket.capacity
      line.said = number .. ' ' .. text(now + lease) .. ' ' .. time .. ' ' .. time .. ' ' .. ticket.entry
      alone(line, id, line.said)
    else
      -- It is alone no longer: from here on the line has its indexes.
      if line.sole then unfold(line, line.sole, line.first) end
      local inside = line.w == 0 and line.i + ticket.weight <= line.p
      if not inside then lease = ticket.waiting end
      local expiry = now + lease
      line.said = number .. ' ' .. text(expiry) .. ' ' .. time .. ' ' .. (inside and time or WAITS) .. ' ' .. ticket.entry
      keep(line, expiry, lease)
      if inside then
        line.i, line.m = line.i + ticket.weight, line.m + 1
        share(line, id, expiry)
      else
        call('ZADD', line.queue, number, id)
        if line.w == 0 then call('PEXPIREAT', line.queue, string.format('%d', line.e)) end
        line.w = line.w + 1
        told_of(line)
      end
      line.set = {id, line.said}
    end
    line.changed = true
    local said = line.said
    settle(line)
    answers[at] = place(line, said, lease)
  end
end
if #answers == 1 then return answers[1] end
return answers
