-- enter: joins lines, all or none.
-- KEYS  of each ticket's line, see line.lua
-- ARGV  two for each ticket: its lease in ms, its entry (see line.lua)
-- Says  for each ticket (for one alone: not in an array): "number" inside, with the lease it asked for; "1 lease number"
--       inside, "2 lease number next-lapse" waiting, "3 capacity" mismatch, "4 now record" no room, "5" not entered because
--       of another one

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local time = clock[2]
if #time < 6 then time = string.rep('0', 6 - #time) .. time end
time = clock[1] .. time
if #time ~= 16 then time = string.format('%016d', now) end
local short

-- The short way into an empty line: TIME, GET, SET, EXISTS (and one more EXISTS for a name that is new).
if #ARGV == 2 then
  local key = KEYS[1]
  short = redis.call('GET', key)
  local free
  if short then
    local last = #short == 18 and string.byte(short) == 49 and tonumber(string.sub(short, 3))
    free = last and last < now
  elseif EACH == 1 then
    free = redis.call('EXISTS', key .. ':t', key .. ':q', key .. ':x') == 0
  else
    free = redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) == 0
  end
  if free then
    redis.call('SET', key, '1 ' .. time .. ' ' .. ARGV[2], 'PX', ARGV[1])
    if redis.call('EXISTS', WATCH) == 1 then
      local said = 'e ' .. key .. ' ' .. string.sub(ARGV[2], 34)
      redis.call(PUBLISH, key .. ':changes', said)
      if EVERYWHERE then redis.call(PUBLISH, EVERYWHERE, said) end
    end
    return time
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
