-- What every verb needs of a line. Put into each verb's script in place of its mark.
--
-- Keys of one line, four in a row in KEYS (all in one slot: the name stands in braces):
--   fencelock:{name}    string, the short form: "1 number" is an empty line and its last number, "1 number capacity id
--                       record" a ticket that is alone; the key expires with its lease. No other key exists then.
--   fencelock:{name}:t  hash, the long form, of a line with company (or with numbers ahead of the clock):
--       v  the layout's version, 1                p  the capacity
--       n  the last number given out              e  when the keys expire (ms)
--       c, i, t, f  how many tickets, weight inside, weight of all, number of the last one inside
--       x  no lease ends before this
--       <id>  the record of each ticket
--   fencelock:{name}:q  zset: ids by number
--   fencelock:{name}:x  zset: ids by expiry
-- A record is "number weight expiry entered admitted mode inbox owner note", times in us of the server's clock, admitted 0
-- while it waits. The two zsets are indexes: they may hold an id too many (it is then ignored and dropped), never one too
-- few, so they are written before the hash and cleared after it. Nothing that is read after the first write can fail.
-- A last key, where there is one, is there while somebody watches: changes are then told as "key facts" on the channels
-- fencelock:{name}:changes and EVERYWHERE.
-- The caller says how messages are sent, in a first line before each script: PUBLISH is the command, EVERYWHERE the channel
-- for changes of all lines, or nil where there is none.
--
-- No verb walks the line: whatever it does costs O(log n) for each ticket that it takes out, lets in or was asked about.

-- How long the last number outlives the line: a clock that is set back by less than this gives out no number twice.
local FLOOR = 60000000

-- Lua's own tostring gives 1.79e+15; %d costs about half of %.0f and is exact where a long has 64 bits, which is asked
-- of the server at connect.
local function text(number) return string.format('%d', number) end

local function millis(us) return text(math.max(math.ceil(us / 1000), 1)) end

local function parse(record)
  local token, weight, expiry, entered, admitted, facts =
    string.match(record, '^(%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if not token then error('FENCELOCK DAMAGED a ticket that cannot be read') end
  return {token = tonumber(token), weight = tonumber(weight), expiry = tonumber(expiry), entered = entered,
    admitted = admitted, facts = facts}
end

local function record(ticket)
  return text(ticket.token) .. ' ' .. text(ticket.weight) .. ' ' .. text(ticket.expiry) .. ' ' .. ticket.entered .. ' '
    .. ticket.admitted .. ' ' .. ticket.facts
end

-- Counts everything anew from the tickets and makes the indexes again.
local function repair(line)
  local all = redis.call('HGETALL', line.hash)
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
  line.x, line.dirty, line.changed = 0, true, true
  if line.c > 0 and line.e > 0 then
    redis.call('PEXPIREAT', line.queue, text(line.e))
    redis.call('PEXPIREAT', line.lapse, text(line.e))
  end
end

-- Reads the line whose keys begin at KEYS[at], and the ticket `id` in it. `short` is the first key's value, if it was read.
local function read(at, id, short)
  local line = {key = KEYS[at], hash = KEYS[at + 1], queue = KEYS[at + 2], lapse = KEYS[at + 3], set = {}, del = {},
    told = {}, n = 0, p = 0, e = 0, x = 0, c = 0, i = 0, t = 0, f = 0}
  if short == nil then short = redis.call('GET', line.key) end
  if short then
    local n, p, sole, found = string.match(short, '^1 (%d+) ?(%d*) ?(%x*) ?(.*)$')
    if not n then error('FENCELOCK LAYOUT ' .. string.match(short, '^%S*')) end
    line.n = tonumber(n)
    if p ~= '' then
      if #sole ~= 32 then error('FENCELOCK DAMAGED a ticket that cannot be read') end
      line.p, line.sole, line.first = tonumber(p), sole, parse(found)
      line.c, line.i, line.t, line.f = 1, line.first.weight, line.first.weight, line.first.token
      if sole == id then line.own = line.first end
    end
    return line
  end
  local h = redis.call('HMGET', line.hash, 'v', 'n', 'p', 'c', 'i', 't', 'f', 'e', 'x', id)
  if h[1] == '1' then
    line.indexed = true
    line.n, line.p, line.e, line.x = tonumber(h[2]) or 0, tonumber(h[3]), tonumber(h[8]) or 0, tonumber(h[9]) or 0
    line.c, line.i, line.t, line.f = tonumber(h[4]), tonumber(h[5]), tonumber(h[6]), tonumber(h[7])
    if not line.p then error('FENCELOCK DAMAGED its capacity is missing') end
    local queued, lapses = redis.call('ZCARD', line.queue), redis.call('ZCARD', line.lapse)
    if not (line.c and line.i and line.t and line.f) or queued < line.c or lapses < line.c then repair(line) end
    if h[10] then line.own = parse(h[10]) end
  elseif h[1] or h[2] or h[3] or h[4] then
    error('FENCELOCK LAYOUT ' .. (h[1] or 'unknown'))
  elseif redis.call('EXISTS', line.queue, line.lapse) > 0 then
    -- Without its tickets a line cannot be known; what is left of it says how long somebody may believe to be inside.
    local last = redis.call('ZRANGE', line.lapse, '-1', '-1', 'WITHSCORES')
    local left = last[2] and tonumber(last[2]) - now or redis.call('PTTL', line.queue) * 1000
    if left > 0 then error('FENCELOCK DAMAGED its tickets are missing; free in ' .. text(left / 1000) .. ' ms') end
    redis.call('DEL', line.queue, line.lapse)
  end
  return line
end

-- An empty line keeps its last number for a while. Memory that is short must not keep anybody from leaving.
local function empty(line)
  local lives = millis(math.max(line.n - now, 0) + FLOOR)
  local done = redis.pcall('SET', line.key, '1 ' .. text(line.n), 'PX', lives)
  if done.err then redis.call('DEL', line.key) end
end

-- Takes a ticket out, in the books; `settle` writes it down.
local function drop(line, id, ticket)
  line.c, line.t = line.c - 1, line.t - ticket.weight
  if ticket.token <= line.f then line.i = line.i - ticket.weight end
  if line.sole then
    line.sole = nil
    empty(line)
  else
    redis.call('HDEL', line.hash, id)
    line.del[#line.del + 1] = id
    line.dirty = true
  end
  line.changed, line.facts = true, ticket.facts
end

-- Writes the counters and the records that have changed.
local function write(line)
  redis.call('HSET', line.hash, 'c', text(line.c), 'i', text(line.i), 't', text(line.t), 'f', text(line.f),
    unpack(line.set))
  line.set = {}
end

-- Lets in whoever fits now.
local function admit(line)
  while line.indexed and line.t > line.i and line.i < line.p do
    local next = redis.call('ZRANGEBYSCORE', line.queue, '(' .. text(line.f), '+inf', 'LIMIT', '0', '1')[1]
    if not next then return end
    local found = redis.call('HGET', line.hash, next)
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
      line.dirty, line.changed, line.facts = true, true, ticket.facts
      if #line.set >= 1000 then write(line) end
    end
  end
end

-- Writes down what was done, and tells whom it concerns.
local function settle(line)
  if line.dirty then
    if line.c <= 0 then
      redis.call('DEL', line.hash, line.queue, line.lapse)
      line.indexed, line.e, line.x = nil, 0, 0
      empty(line)
    else
      write(line)
      if #line.del > 0 then
        redis.call('ZREM', line.queue, unpack(line.del))
        redis.call('ZREM', line.lapse, unpack(line.del))
      end
    end
    line.dirty, line.set, line.del = nil, {}, {}
  end
  for _, news in ipairs(line.told) do redis.call(PUBLISH, news[1], news[2]) end
  line.told = {}
  if line.changed then
    line.changed = nil
    if #KEYS % 4 == 1 and redis.call('EXISTS', KEYS[#KEYS]) == 1 then
      local said = line.key .. ' ' .. (line.facts or '')
      redis.call(PUBLISH, line.key .. ':changes', said)
      if EVERYWHERE then redis.call(PUBLISH, EVERYWHERE, said) end
    end
  end
end

-- Takes out whoever's lease has ended. Afterwards no lease ends before `line.x`.
local function sweep(line, id)
  if line.sole then
    line.x = line.first.expiry
    if line.x <= now then
      line.own = nil
      drop(line, line.sole, line.first)
    end
    return
  end
  while line.indexed and line.c > 0 and line.x <= now do
    local first = redis.call('ZRANGE', line.lapse, '0', '0', 'WITHSCORES')
    line.x = tonumber(first[2]) or now + FLOOR
    line.set[#line.set + 1] = 'x'
    line.set[#line.set + 1] = text(line.x)
    line.dirty = true
    if line.x <= now then
      local ids = redis.call('ZRANGEBYSCORE', line.lapse, '-inf', text(now), 'LIMIT', '0', '1000')
      local found = redis.call('HMGET', line.hash, unpack(ids))
      redis.call('HDEL', line.hash, unpack(ids))
      for at = 1, #ids do
        if ids[at] == id then line.own = nil end
        if found[at] then
          local ticket = parse(found[at])
          line.c, line.t, line.facts = line.c - 1, line.t - ticket.weight, ticket.facts
          if ticket.token <= line.f then line.i = line.i - ticket.weight end
        end
      end
      if line.c > 0 then redis.call('HSET', line.hash, 'c', text(line.c), 'i', text(line.i), 't', text(line.t)) end
      redis.call('ZREM', line.queue, unpack(ids))
      redis.call('ZREM', line.lapse, unpack(ids))
      line.changed = true
    end
  end
end

-- The line as it is now: the lapsed are out, whoever fits is in.
local function open(at, id, short)
  local line = read(at, id, short)
  sweep(line, id)
  if line.dirty or line.changed then
    local own = line.own
    admit(line)
    settle(line)
    if own and line.indexed then line.own = parse(redis.call('HGET', line.hash, id)) end
  end
  return line
end

-- The keys of the long form live at least until `expiry` and the floor's time after it.
local function keep(line, expiry)
  local need = math.ceil((math.max(expiry, line.n) + FLOOR) / 1000)
  if line.e < need then
    -- Longer than they must, so that the next tickets need not do it again.
    line.e = need + FLOOR / 1000
    redis.call('HSET', line.hash, 'e', text(line.e))
    redis.call('PEXPIREAT', line.hash, text(line.e))
    redis.call('PEXPIREAT', line.queue, text(line.e))
    redis.call('PEXPIREAT', line.lapse, text(line.e))
  end
end

-- From here on the line has the long form, with this one ticket in it.
local function unfold(line, id, ticket)
  redis.call('DEL', line.queue, line.lapse, line.hash)
  redis.call('ZADD', line.queue, text(ticket.token), id)
  redis.call('ZADD', line.lapse, text(ticket.expiry), id)
  redis.call('HSET', line.hash, 'v', '1', 'n', text(line.n), 'p', text(line.p), 'c', '1',
    'i', text(ticket.weight), 't', text(ticket.weight), 'f', text(ticket.token), 'x', text(ticket.expiry), id, record(ticket))
  redis.call('DEL', line.key)
  line.c, line.i, line.t, line.f, line.x = 1, ticket.weight, ticket.weight, ticket.token, ticket.expiry
  line.sole, line.first, line.indexed, line.e = nil, nil, true, 0
  keep(line, ticket.expiry)
end

-- Writes down a ticket that is alone: in the short form, unless the numbers are ahead of the clock.
local function alone(line, id, ticket)
  if line.n > now then return unfold(line, id, ticket) end
  redis.call('SET', line.key, '1 ' .. text(line.n) .. ' ' .. text(line.p) .. ' ' .. id .. ' ' .. record(ticket),
    'PX', millis(ticket.expiry - now))
  if line.indexed then redis.call('DEL', line.hash, line.queue, line.lapse) end
  line.c, line.i, line.t, line.f, line.x = 1, ticket.weight, ticket.weight, ticket.token, ticket.expiry
  line.sole, line.first, line.indexed, line.dirty = id, ticket, nil, nil
end

-- Moves the expiry of a ticket that is there; never to an earlier time. Says how long it is there from now.
local function extend(line, id, ticket, lease)
  if now + lease > ticket.expiry then
    ticket.expiry = now + lease
    if line.sole then
      alone(line, id, ticket)
    else
      redis.call('ZADD', line.lapse, text(ticket.expiry), id)
      redis.call('HSET', line.hash, id, record(ticket))
      keep(line, ticket.expiry)
    end
  end
  return ticket.expiry - now
end

-- "1 lease number" inside, "2 lease number next-lapse" waiting; times in us from now.
local function place(line, ticket, lease)
  if ticket.token <= line.f then return '1 ' .. text(lease) .. ' ' .. text(ticket.token) end
  return '2 ' .. text(lease) .. ' ' .. text(ticket.token) .. ' ' .. text(math.max(line.x - now, 0))
end

-- The first of the line, or the first other than `id`.
local function head(line, id)
  if line.sole then return line.sole ~= id and record(line.first) end
  for _, other in ipairs(redis.call('ZRANGE', line.queue, '0', '2')) do
    local found = other ~= id and redis.call('HGET', line.hash, other)
    if found then return found end
  end
end
