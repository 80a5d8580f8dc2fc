-- enter: joins lines, all or none.
-- KEYS  three for each ticket (see line.lua), the watch key
-- ARGV  eight for each ticket: id, weight, capacity, lease us, lease us while it waits, 1 to queue or 0,
--       "mode inbox owner note", the name in full where the key holds its hash (else empty)
-- Says  for each ticket: "1 lease number" inside, "2 lease number next-lapse" waiting, "3 capacity" mismatch,
--       "4 now record" no room, "5" not entered because of another one

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local hash

-- The short way into an empty line that is known: HMGET, EXISTS, HSET.
if #ARGV == 8 then
  hash = redis.call('HMGET', KEYS[1], 'v', 'n', 'p', 's', 'r', 'c', 'i', 't', 'f', 'e', 'o', ARGV[1])
  local lease = tonumber(ARGV[4])
  if hash[1] == '1' and not hash[4] and not hash[5] and not hash[6] and not hash[7] and ARGV[8] == ''
    and tonumber(hash[2] or 0) < now and tonumber(hash[10] or 0) * 1000 >= now + lease + 60000000 then
    local time = string.format('%.0f', now)
    redis.call('HSET', KEYS[1], 'n', time, 'p', ARGV[3], 's', ARGV[1], 'r', time .. ' ' .. ARGV[2] .. ' '
      .. string.format('%.0f', now + lease) .. ' ' .. time .. ' ' .. time .. ' ' .. ARGV[7])
    if tonumber(hash[11] or 0) > now or (#KEYS == 4 and redis.call('EXISTS', KEYS[4]) == 1) then
      redis.call('PUBLISH', KEYS[1] .. ':changes', KEYS[1] .. ' ')
      redis.call('PUBLISH', 'fencelock:changes', KEYS[1] .. ' ')
    end
    return {'1 ' .. ARGV[4] .. ' ' .. time}
  end
end

--<line>

local tickets = {}
local answers = {}
local refused = false
for at = 1, #ARGV / 8 do
  local a = at * 8 - 7
  local ticket = {id = ARGV[a], weight = tonumber(ARGV[a + 1]), capacity = tonumber(ARGV[a + 2]),
    lease = tonumber(ARGV[a + 3]), waiting = tonumber(ARGV[a + 4]), queue = ARGV[a + 5] == '1', facts = ARGV[a + 6],
    long = ARGV[a + 7]}
  local line = open(at * 3 - 2, ticket.id, hash)
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
    line.n = new.token
    if line.c == 0 then
      redis.call('HSET', line.key, 'v', '1', 'n', text(line.n), 'p', text(ticket.capacity), 's', ticket.id,
        'r', record(new))
      line.sole, line.first, line.f = ticket.id, new, new.token
    else
      if line.sole then
        -- It is alone no longer: from here on the line has its indexes.
        redis.call('ZADD', line.queue, text(line.first.token), line.sole)
        redis.call('ZADD', line.lapse, text(line.first.expiry), line.sole)
        redis.call('HSET', line.key, line.sole, record(line.first), 'c', 1, 'i', line.i, 't', line.t, 'f', text(line.f))
        redis.call('HDEL', line.key, 's', 'r')
        if line.e > 0 then
          redis.call('PEXPIREAT', line.queue, text(line.e))
          redis.call('PEXPIREAT', line.lapse, text(line.e))
        end
        line.sole, line.first, line.indexed = nil, nil, true
      end
      local inside = line.t == line.i and line.t + new.weight <= line.p
      if not inside then
        new.expiry, new.admitted = now + ticket.waiting, '0'
      end
      redis.call('ZADD', line.queue, text(new.token), ticket.id)
      redis.call('ZADD', line.lapse, text(new.expiry), ticket.id)
      line.c, line.t = line.c + 1, line.t + new.weight
      line.next_lapse = math.min(line.next_lapse or new.expiry, new.expiry)
      if inside then line.i, line.f = line.i + new.weight, new.token end
      redis.call('HSET', line.key, 'n', text(line.n), 'c', line.c, 'i', line.i, 't', line.t, 'f', text(line.f),
        ticket.id, record(new))
    end
    if ticket.long ~= '' then redis.call('HSET', line.key, 'l', ticket.long) end
    keep(line, new.expiry)
    line.changed = true
    settle(line)
    answers[at] = place(line, new, new.expiry - now)
  end
end
return answers
