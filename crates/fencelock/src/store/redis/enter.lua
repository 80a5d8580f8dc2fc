-- enter: joins lines, all or none.
-- KEYS  four for each ticket (see line.lua), the watch key
-- ARGV  seven for each ticket: id, weight, capacity, lease us, lease us while it waits, 1 to queue or 0,
--       "mode inbox owner note"
-- Says  for each ticket: "1 lease number" inside, "2 lease number next-lapse" waiting, "3 capacity" mismatch,
--       "4 now record" no room, "5" not entered because of another one

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local short

-- The short way into an empty line: GET, SET, EXISTS (and one more EXISTS for a name that is new).
if #ARGV == 7 then
  short = redis.call('GET', KEYS[1])
  local last = short and string.match(short, '^1 (%d+)$')
  if not short and redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) == 0 then last = 0 end
  if last and tonumber(last) < now then
    local time = string.format('%d', now)
    redis.call('SET', KEYS[1], '1 ' .. time .. ' ' .. ARGV[3] .. ' ' .. ARGV[1] .. ' ' .. time .. ' ' .. ARGV[2] .. ' '
      .. string.format('%d', now + ARGV[4]) .. ' ' .. time .. ' ' .. time .. ' ' .. ARGV[7], 'PX',
      string.format('%d', math.ceil(ARGV[4] / 1000)))
    if #KEYS == 5 and redis.call('EXISTS', KEYS[5]) == 1 then
      redis.call(PUBLISH, KEYS[1] .. ':changes', KEYS[1] .. ' ' .. ARGV[7])
      if EVERYWHERE then redis.call(PUBLISH, EVERYWHERE, KEYS[1] .. ' ' .. ARGV[7]) end
    end
    return {'1 ' .. ARGV[4] .. ' ' .. time}
  end
end

--<line>

local tickets = {}
local answers = {}
local refused = false
for at = 1, #ARGV / 7 do
  local a = at * 7 - 6
  local ticket = {id = ARGV[a], weight = tonumber(ARGV[a + 1]), capacity = tonumber(ARGV[a + 2]),
    lease = tonumber(ARGV[a + 3]), waiting = tonumber(ARGV[a + 4]), queue = ARGV[a + 5] == '1', facts = ARGV[a + 6]}
  local line = open(at * 4 - 3, ticket.id, short)
  ticket.line = line
  tickets[at] = ticket
  answers[at] = '5'
  if line.own or line.c == 0 then
    -- There already, or nobody is.
  elseif line.p ~= ticket.capacity then
    answers[at] = '3 ' .. text(line.p)
    refused = true
  elseif not ticket.queue and line.t + ticket.weight > line.p then
    answers[at] = '4 ' .. text(now) .. ' ' .. (head(line) or '')
    refused = true
  end
end
if refused then return answers end

for at, ticket in ipairs(tickets) do
  local line = ticket.line
  if line.own then
    local lease = line.own.token <= line.f and ticket.lease or ticket.waiting
    answers[at] = place(line, line.own, extend(line, ticket.id, line.own, lease))
  else
    local new = {token = math.max(line.n + 1, now), weight = ticket.weight, expiry = now + ticket.lease,
      entered = text(now), admitted = text(now), facts = ticket.facts}
    line.n, line.facts = new.token, new.facts
    if line.c == 0 then
      line.p = ticket.capacity
      alone(line, ticket.id, new)
    else
      -- It is alone no longer: from here on the line has its indexes.
      if line.sole then unfold(line, line.sole, line.first) end
      local inside = line.t == line.i and line.t + new.weight <= line.p
      if not inside then
        new.expiry, new.admitted = now + ticket.waiting, '0'
      end
      redis.call('ZADD', line.queue, text(new.token), ticket.id)
      redis.call('ZADD', line.lapse, text(new.expiry), ticket.id)
      line.c, line.t = line.c + 1, line.t + new.weight
      if inside then line.i, line.f = line.i + new.weight, new.token end
      line.x = math.min(line.x, new.expiry)
      redis.call('HSET', line.hash, 'n', text(line.n), 'c', text(line.c), 'i', text(line.i), 't', text(line.t), 'f', text(line.f),
        'x', text(line.x), ticket.id, record(new))
      keep(line, new.expiry)
    end
    line.changed = true
    settle(line)
    answers[at] = place(line, new, new.expiry - now)
  end
end
return answers
