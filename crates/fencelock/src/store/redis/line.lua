-- What every verb needs of a line. Put into each verb's script in place of its mark.
--
-- Keys of one line, three in a row in KEYS (all in one slot: the name stands in braces):
--   fencelock:{name}    hash: the truth about the line
--       v  the layout's version, 1
--       n  the last number given out (the floor of the next one)
--       p  the capacity
--       s, r  id and record of a ticket that is alone and never had company: no other key exists then
--       c, i, t, f  otherwise: how many tickets, weight inside, weight of all, number of the last one inside
--       <id>  otherwise: the record of each ticket
--       e  when the keys expire (ms)
--       o  until when somebody watches this line (us)
--       l  the name in full, where the key holds its hash
--   fencelock:{name}:q  zset: ids by number
--   fencelock:{name}:x  zset: ids by expiry
-- A record is "number weight expiry entered admitted mode inbox owner note", times in us of the server's clock, admitted 0
-- while it waits. The two zsets are indexes: they may hold an id too many (it is then ignored and dropped), never one too
-- few, so they are written before the hash and cleared after it. Nothing that is read after the first write can fail.
-- A last key, where there is one, is there while somebody watches all lines. Changes are told as "key long-name" on the
-- channels fencelock:{name}:changes and fencelock:changes.
--
-- No verb walks the line: whatever it does costs O(log n) for each ticket that it takes out, lets in or was asked about.

-- How long the last number outlives the line: a clock that is set back by less than this gives out no number twice.
local FLOOR = 60000000

local function text(number) return string.format('%.0f', number) end

local function parse(record)
  local token, weight, expiry, entered, admitted, facts =
    string.match(record, '^(%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if not token then error('FENCELOCK DAMAGED a ticket that cannot be read') end
  return {token = tonumber(token), weight = tonumber(weight), expiry = tonumber(expiry), entered = entered,
    admitted = admitted, facts = facts}
end

local function record(ticket)
  return string.format('%.0f %.0f %.0f %s %s %s', ticket.token, ticket.weight, ticket.expiry, ticket.entered,
    ticket.admitted, ticket.facts)
end

-- Counts everything anew from the tickets and makes the indexes again.
local function repair(line)
  local all = redis.call('HGETALL', line.key)
  redis.call('DEL', line.queue, line.lapse)
  line.c, line.i, line.t, line.f = 0, 0, 0, 0
  for at = 1, #all, 2 do
    if #all[at] == 32 then
      local ticket = parse(all[at + 1])
      redis.call('ZADD', line.queue, text(ticket.token), all[at])
      redis.call('ZADD', line.lapse, text(ticket.expiry), all[at])
      line.c, line.t = line.c + 1, line.t + ticket.weight
      if ticket.admitted ~= '0' then
        line.i, line.f = line.i + ticket.weight, math.max(line.f, ticket.token)
      end
    end
  end
  line.dirty, line.changed = true, true
  if line.c > 0 and line.e > 0 then
    redis.call('PEXPIREAT', line.queue, text(line.e))
    redis.call('PEXPIREAT', line.lapse, text(line.e))
  end
end

-- Reads the line whose keys begin at KEYS[at], and the ticket `id` in it. `h` is the answer to the same HMGET, if it was
-- asked already.
local function read(at, id, h)
  local line = {key = KEYS[at], queue = KEYS[at + 1], lapse = KEYS[at + 2], set = {}, del = {}, told = {}}
  h = h or redis.call('HMGET', line.key, 'v', 'n', 'p', 's', 'r', 'c', 'i', 't', 'f', 'e', 'o', id)
  line.n, line.p, line.e, line.o = tonumber(h[2]) or 0, tonumber(h[3]) or 0, tonumber(h[10]) or 0, tonumber(h[11]) or 0
  line.c, line.i, line.t, line.f = 0, 0, 0, 0
  if not h[1] then
    if h[2] or h[3] or h[4] or h[5] or h[6] then error('FENCELOCK LAYOUT unknown') end
    -- Without its hash a line cannot be known; what is left of it says how long somebody may believe to be inside.
    if redis.call('EXISTS', line.queue, line.lapse) > 0 then
      local last = redis.call('ZRANGE', line.lapse, -1, -1, 'WITHSCORES')
      local left = last[2] and tonumber(last[2]) - now or redis.call('PTTL', line.queue) * 1000
      if left > 0 then error('FENCELOCK DAMAGED its tickets are missing; free in ' .. text(left / 1000) .. ' ms') end
      redis.call('DEL', line.queue, line.lapse)
    end
  elseif h[1] ~= '1' then
    error('FENCELOCK LAYOUT ' .. h[1])
  elseif h[4] then
    if not h[5] or line.p == 0 then error('FENCELOCK DAMAGED a ticket without a record') end
    line.sole, line.first = h[4], parse(h[5])
    line.c, line.i, line.t, line.f = 1, line.first.weight, line.first.weight, line.first.token
    if h[4] == id then line.own = line.first end
  elseif h[6] or h[7] or h[8] or h[9] then
    line.indexed = true
    if line.p == 0 then error('FENCELOCK DAMAGED its capacity is missing') end
    line.c, line.i, line.t, line.f = tonumber(h[6]), tonumber(h[7]), tonumber(h[8]), tonumber(h[9])
    local queued, lapses = redis.call('ZCARD', line.queue), redis.call('ZCARD', line.lapse)
    if not (line.c and line.i and line.t and line.f) or queued < line.c or lapses < line.c then repair(line) end
    if h[12] then line.own = parse(h[12]) end
  elseif h[5] then
    error('FENCELOCK DAMAGED a record without a ticket')
  end
  return line
end

-- Takes a ticket out, in the books; `settle` writes it down.
local function drop(line, id, ticket)
  line.c, line.t = line.c - 1, line.t - ticket.weight
  if ticket.token <= line.f then line.i = line.i - ticket.weight end
  if line.sole then
    line.sole = nil
    redis.call('HDEL', line.key, 's', 'r')
  else
    redis.call('HDEL', line.key, id)
    line.del[#line.del + 1] = id
    line.dirty = true
  end
  line.changed = true
end

-- Writes the counters and the records that have changed.
local function write(line)
  redis.call('HSET', line.key, 'c', line.c, 'i', line.i, 't', line.t, 'f', text(line.f), unpack(line.set))
  line.set = {}
end

-- Lets in whoever fits now.
local function admit(line)
  while line.indexed and line.t > line.i and line.i < line.p do
    local next = redis.call('ZRANGEBYSCORE', line.queue, '(' .. text(line.f), '+inf', 'LIMIT', 0, 1)[1]
    if not next then return end
    local found = redis.call('HGET', line.key, next)
    if not found then
      redis.call('ZREM', line.queue, next)
      redis.call('ZREM', line.lapse, next)
    else
      local ticket = parse(found)
      if line.i + ticket.weight > line.p then return end
      ticket.admitted = text(now)
      line.i, line.f = line.i + ticket.weight, ticket.token
      line.set[#line.set + 1] = next
      line.set[#line.set + 1] = record(ticket)
      line.told[#line.told + 1] = {string.match(ticket.facts, '^%S+ (%S+)'), 'g ' .. next .. ' ' .. text(ticket.token)}
      line.dirty, line.changed = true, true
      if #line.set >= 1000 then write(line) end
    end
  end
end

-- Tells those who watch this line, and those who watch them all, that it has changed.
local function tell(line)
  local named, all = line.o > now, #KEYS % 3 == 1 and redis.call('EXISTS', KEYS[#KEYS]) == 1
  if not named and not all then return end
  local said = line.key .. ' ' .. (redis.call('HGET', line.key, 'l') or '')
  if named then redis.call('PUBLISH', line.key .. ':changes', said) end
  if all then redis.call('PUBLISH', 'fencelock:changes', said) end
end

-- Writes down what was done, and tells whom it concerns.
local function settle(line)
  if line.dirty then
    if line.c <= 0 then
      redis.call('HDEL', line.key, 'c', 'i', 't', 'f')
      redis.call('DEL', line.queue, line.lapse)
      line.indexed = nil
    else
      write(line)
      if #line.del > 0 then
        redis.call('ZREM', line.queue, unpack(line.del))
        redis.call('ZREM', line.lapse, unpack(line.del))
      end
    end
    line.dirty, line.set, line.del = nil, {}, {}
  end
  for _, news in ipairs(line.told) do redis.call('PUBLISH', news[1], news[2]) end
  line.told = {}
  if line.changed then
    line.changed = nil
    tell(line)
  end
end

-- Takes out whoever's lease has ended. Afterwards `line.next_lapse` is when the next one's will.
local function sweep(line, id)
  if line.sole then
    if line.first.expiry <= now then
      line.own = nil
      drop(line, line.sole, line.first)
    else
      line.next_lapse = line.first.expiry
    end
    return
  end
  while line.indexed and line.c > 0 do
    local first = redis.call('ZRANGE', line.lapse, 0, 0, 'WITHSCORES')
    line.next_lapse = tonumber(first[2])
    if not first[1] or line.next_lapse > now then return end
    local ids = redis.call('ZRANGEBYSCORE', line.lapse, '-inf', text(now), 'LIMIT', 0, 1000)
    local found = redis.call('HMGET', line.key, unpack(ids))
    redis.call('HDEL', line.key, unpack(ids))
    for at = 1, #ids do
      if ids[at] == id then line.own = nil end
      if found[at] then
        local ticket = parse(found[at])
        line.c, line.t = line.c - 1, line.t - ticket.weight
        if ticket.token <= line.f then line.i = line.i - ticket.weight end
      end
    end
    if line.c > 0 then redis.call('HSET', line.key, 'c', line.c, 'i', line.i, 't', line.t) end
    redis.call('ZREM', line.queue, unpack(ids))
    redis.call('ZREM', line.lapse, unpack(ids))
    line.dirty, line.changed = true, true
  end
end

-- The line as it is now: the lapsed are out, whoever fits is in.
local function open(at, id, h)
  local line = read(at, id, h)
  sweep(line, id)
  if line.changed then
    admit(line)
    settle(line)
    if line.own and id then line.own = line.sole == id and line.first or parse(redis.call('HGET', line.key, id)) end
  end
  return line
end

-- The keys live at least until `expiry` and the floor's time after it.
local function keep(line, expiry)
  local need = math.ceil((math.max(expiry, line.n) + FLOOR) / 1000)
  if line.e < need then
    -- Longer than it must be, so that the next tickets need not do it again.
    line.e = need + FLOOR / 1000
    redis.call('HSET', line.key, 'e', text(line.e))
    redis.call('PEXPIREAT', line.key, text(line.e))
    if line.indexed then
      redis.call('PEXPIREAT', line.queue, text(line.e))
      redis.call('PEXPIREAT', line.lapse, text(line.e))
    end
  end
end

-- Moves the expiry of a ticket that is there; never to an earlier time. Says how long it is there from now.
local function extend(line, id, ticket, lease)
  if now + lease > ticket.expiry then
    ticket.expiry = now + lease
    if line.sole then
      redis.call('HSET', line.key, 'r', record(ticket))
    else
      redis.call('ZADD', line.lapse, text(ticket.expiry), id)
      redis.call('HSET', line.key, id, record(ticket))
    end
    keep(line, ticket.expiry)
  end
  return ticket.expiry - now
end

-- "1 lease number" inside, "2 lease number next-lapse" waiting; times in us from now.
local function place(line, ticket, lease)
  if ticket.token <= line.f then return '1 ' .. text(lease) .. ' ' .. text(ticket.token) end
  return '2 ' .. text(lease) .. ' ' .. text(ticket.token) .. ' ' .. text(math.max((line.next_lapse or now) - now, 0))
end

-- The first of the line, or the first other than `id`.
local function head(line, id)
  if line.sole then return line.sole ~= id and record(line.first) end
  for _, other in ipairs(redis.call('ZRANGE', line.queue, 0, 2)) do
    local found = other ~= id and redis.call('HGET', line.key, other)
    if found then return found end
  end
end
