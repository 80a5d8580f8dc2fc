-- What every verb needs of a line. Put into each verb's script in place of its mark; before it stand the verb's own `now`
-- (us of the server's clock) and `time` (the same in 16 digits).
--
-- Keys of one line (all in one slot: the name stands in braces):
--   fencelock:{name}    string, the short form: "1 number until" is an empty line and its last number, "1 number until entry"
--                       a ticket that is alone since then, "1 number until record" one that is alone and was renewed or
--                       changed. No other key exists then. The key expires a minute after the lease, or later: up to
--                       the second `until` it will live for another 160 s at least, enough for any lease below 100 s,
--                       so that it can be written over and over without saying when it expires. "----------" there is
--                       a lease that is longer; its key would outlive it by far, so leaving it says when it expires.
--   fencelock:{name}:t  hash, the long form, of a line with company (or with numbers ahead of the clock):
--       s     "1", then as doubles: the last number given out, the capacity, the weight inside, how many are inside, how
--             many wait, no lease inside ends before this (us), when the keys expire (ms), the latest such end that
--             anybody who waits was told of; then the id of whoever is inside with all of the capacity
--       <id>  the record of each ticket
--   fencelock:{name}:q  zset: those who wait, ids by number
--   fencelock:{name}:x  zset: those inside with a part of the capacity, ids by expiry
-- An entry is what the client says of a ticket: "id weight capacity lease waiting-lease queue inbox mode owner note", the id
-- in 32 digits, weight and capacity in 7. A record is "number expiry entered admitted entry", times in us of the server's
-- clock, 16 digits each, admitted 0 while it waits. The two zsets are indexes: they may hold an id too many (it is then
-- ignored and dropped), never one too few. All keys that are written are read before the first write, so that nothing fails
-- half-way. A lapsed ticket that waits is dropped when its turn comes, or when it is asked about.
--
-- The caller says in a first line before each script:
--   PUBLISH, EVERYWHERE  the command that sends messages, the channel for changes of all lines (or nil)
--   EACH, WATCH          how many KEYS each line has: 1, the others are made here; or in a cluster 4, all of them named. The
--                        key that is there while somebody watches: changes are then told as "what key entry" (without the
--                        id) on fencelock:{name}:changes and EVERYWHERE; what is "f" if there may be room, else "e".
--
-- No verb walks the line but inspect, list, and expel among readers: whatever another does costs O(log n) for each ticket
-- that it takes out, lets in or was asked about.

-- How long the last number outlives the line: a clock that is set back by less than this gives out no number twice.
local FLOOR = 60000000
local NEVER = 9007199254740991
local WAITS = '0000000000000000'
local call, sub = redis.call, string.sub

-- Lua's own tostring gives 1.79e+15; %d costs about half of %.0f and is exact where a long has 64 bits, which is asked
-- of the server at connect.
local function text(number) return string.format('%016d', number) end

local function damaged() error('FENCELOCK DAMAGED a ticket that cannot be read') end

-- What a record says.
local function number_of(record) return tonumber(sub(record, 1, 16)) or damaged() end
local function expiry_of(record) return tonumber(sub(record, 18, 33)) or damaged() end
local function weight_of(record) return tonumber(sub(record, 102, 108)) or damaged() end
local function is_inside(record) return sub(record, 52, 67) ~= WAITS end
-- Without the id, which is a secret.
local function shown(record) return sub(record, 1, 68) .. sub(record, 102) end

-- Counts everything anew from the tickets and makes the indexes again.
local function repair(line)
  call('ZCARD', line.queue)
  call('ZCARD', line.lapse)
  local all = call('HGETALL', line.hash)
  call('DEL', line.queue, line.lapse)
  line.i, line.m, line.w, line.x, line.holder = 0, 0, 0, NEVER, ''
  for at = 1, #all, 2 do
    local id, record = all[at], all[at + 1]
    if #id == 32 then
      local weight, expiry, number = weight_of(record), expiry_of(record), number_of(record)
      line.p, line.n = tonumber(sub(record, 110, 116)) or damaged(), math.max(line.n, number)
      if not is_inside(record) then
        line.w = line.w + 1
        call('ZADD', line.queue, text(number), id)
      else
        line.i, line.m, line.x = line.i + weight, line.m + 1, math.min(line.x, expiry)
        if weight == line.p then line.holder = id else call('ZADD', line.lapse, text(expiry), id) end
      end
      line.e = math.max(line.e, math.ceil((expiry + FLOOR) / 1000))
    end
  end
  line.changed, line.freed = true, true
  for _, key in ipairs({line.hash, line.queue, line.lapse}) do call('PEXPIREAT', key, string.format('%d', line.e)) end
end

-- Reads the line of the ticket that comes as number `at`, and the ticket `id` in it. `short` is the first key's value, if it
-- was read.
local function read(at, id, short)
  local first = (at - 1) * EACH + 1
  local key = KEYS[first]
  local line = {key = key, n = 0, p = 0, i = 0, m = 0, w = 0, x = NEVER, e = 0, y = 0, holder = '', set = {}, del = {}, told = {}}
  if EACH == 1 then
    line.hash, line.queue, line.lapse = key .. ':t', key .. ':q', key .. ':x'
  else
    line.hash, line.queue, line.lapse = KEYS[first + 1], KEYS[first + 2], KEYS[first + 3]
  end
  if short == nil then short = call('GET', key) end
  if short then
    if sub(short, 1, 2) ~= '1 ' then error('FENCELOCK LAYOUT ' .. string.match(short, '^%S*')) end
    line.n = #short >= 29 and tonumber(sub(short, 3, 18)) or damaged()
    if #short > 29 then
      local record = sub(short, 31)
      if sub(record, 17, 17) ~= ' ' then
        -- As it entered: everything happened at that moment.
        local entered = sub(short, 3, 18)
        local lease = string.match(record, '^ %d%d%d%d%d%d%d %d%d%d%d%d%d%d (%d+) %d+ %d %S+ %S+ %S+ %S', 33) or damaged()
        record = entered .. ' ' .. text(line.n + lease) .. ' ' .. entered .. ' ' .. entered .. ' ' .. record
      end
      line.sole, line.first = sub(record, 69, 100), record
      if #line.sole ~= 32 then damaged() end
      line.i, line.p, line.x, line.m = weight_of(record), tonumber(sub(record, 110, 116)) or damaged(), expiry_of(record), 1
      if line.sole == id then line.own = record end
    end
    return line
  end
  local found = call('HMGET', line.hash, 's', id)
  local state = found[1]
  if state then
    if sub(state, 1, 1) ~= '1' then error('FENCELOCK LAYOUT ' .. string.match(state, '^%w*')) end
    if #state < 65 then error('FENCELOCK DAMAGED its state cannot be read') end
    line.long = true
    line.n, line.p, line.i, line.m, line.w, line.x, line.e, line.y = struct.unpack('>dddddddd', state, 2)
    line.holder = sub(state, 66)
    if call('ZCARD', line.queue) < line.w or line.holder == '' and call('ZCARD', line.lapse) < line.m then repair(line) end
    line.own = found[2] or nil
  elseif call('EXISTS', line.hash) == 1 then
    for _, field in ipairs(call('HKEYS', line.hash)) do
      if #field ~= 32 then error('FENCELOCK LAYOUT unknown') end
    end
    line.long = true
    repair(line)
    line.own = found[2] or nil
  elseif call('EXISTS', line.queue, line.lapse) > 0 then
    -- Without its tickets a line cannot be known; what is left of it says how long somebody may believe to be inside.
    local left = math.max(call('PTTL', line.queue), call('PTTL', line.lapse)) - FLOOR / 1000
    call('ZCARD', line.queue)
    call('ZCARD', line.lapse)
    if left > 0 then error('FENCELOCK DAMAGED its tickets are missing; free in ' .. string.format('%d', left) .. ' ms') end
    call('DEL', line.queue, line.lapse)
  end
  return line
end

-- An empty line keeps its last number for a while. Memory that is short must not keep anybody from leaving.
local function empty(line)
  local lives = math.ceil((math.max(line.n - now, 0) + FLOOR) / 1000)
  local done = redis.pcall('SET', line.key, '1 ' .. text(line.n) .. ' 0000000000', 'PX', string.format('%d', lives))
  if done.err then call('DEL', line.key) end
end

-- Takes a ticket out, in the books; `settle` writes it down.
local function drop(line, id, record)
  if line.sole then
    line.sole, line.i, line.m, line.emptied = nil, 0, 0, true
  else
    line.del[#line.del + 1] = id
    if not is_inside(record) then
      line.w = line.w - 1
      call('ZREM', line.queue, id)
    else
      line.i, line.m = line.i - weight_of(record), line.m - 1
      if line.holder == id then line.holder = '' else call('ZREM', line.lapse, id) end
      if line.m == 0 then line.x = NEVER end
    end
  end
  if line.own and id == sub(line.own, 69, 100) then line.own = nil end
  line.changed, line.freed, line.said = true, true, record
end

-- It has a part of the capacity and is inside.
local function share(line, id, expiry)
  call('ZADD', line.lapse, text(expiry), id)
  if line.m <= 1 then call('PEXPIREAT', line.lapse, string.format('%d', line.e)) end
  line.x = math.min(line.x, expiry)
end

-- Lets in whoever fits now.
local function let_in(line)
  while line.w > 0 and line.i < line.p do
    -- Into an empty room everybody fits.
    local next
    if line.i == 0 then next = call('ZPOPMIN', line.queue)[1] else next = call('ZRANGE', line.queue, '0', '0')[1] end
    if not next then return repair(line) end
    local record = call('HGET', line.hash, next)
    if not record then
      call('ZREM', line.queue, next)
    else
      local expiry, weight = expiry_of(record), weight_of(record)
      local lapsed = expiry <= now
      if not lapsed and line.i + weight > line.p then
        line.next = expiry
        return
      end
      if line.i > 0 then call('ZREM', line.queue, next) end
      line.w, line.changed, line.said = line.w - 1, true, record
      if lapsed then
        line.del[#line.del + 1], line.freed = next, true
        if line.own and next == sub(line.own, 69, 100) then line.own = nil end
      else
        line.i, line.m = line.i + weight, line.m + 1
        if weight == line.p then line.holder, line.x = next, expiry else share(line, next, expiry) end
        record = sub(record, 1, 51) .. time .. sub(record, 68)
        if line.own and next == sub(line.own, 69, 100) then line.own = record end
        line.set[#line.set + 1] = next
        line.set[#line.set + 1] = record
        line.told[#line.told + 1] = string.match(record, '^%d+ %d+ %d (%S+)', 118) or damaged()
        line.told[#line.told + 1] = 'g ' .. next .. ' ' .. sub(record, 1, 16)
        if #line.set >= 1000 then
          call('HSET', line.hash, unpack(line.set))
          line.set = {}
        end
      end
    end
  end
end

-- The same. If a lease that somebody waits for ends earlier by that than they were told, the first of them is told: it then
-- looks in time. (Its renewals tell each of them anyway.)
local function admit(line)
  let_in(line)
  local ends = math.min(line.x, line.next or NEVER)
  if line.w > 0 and ends < line.y then
    local which = ends < line.x and '1' or '0'
    local id = call('ZRANGE', line.queue, which, which)[1]
    local record = id and call('HGET', line.hash, id)
    if record then
      line.told[#line.told + 1] = string.match(record, '^%d+ %d+ %d (%S+)', 118) or damaged()
      line.told[#line.told + 1] = 'l ' .. id .. ' ' .. string.format('%d', math.max(ends - now, 0))
    end
  end
end

-- Writes down what was done, and tells whom it concerns.
local function settle(line)
  if line.emptied then
    line.emptied = nil
    empty(line)
  elseif line.long and (line.changed or line.dirty) then
    if line.m <= 0 and line.w <= 0 then
      call('DEL', line.hash, line.queue, line.lapse)
      line.long, line.e, line.x = nil, 0, NEVER
      empty(line)
    else
      for from = 1, #line.del, 1000 do
        call('HDEL', line.hash, unpack(line.del, from, math.min(from + 999, #line.del)))
      end
      if line.w == 0 then line.y = 0 end
      call('HSET', line.hash, 's', '1' .. struct.pack('>dddddddd', line.n, line.p, line.i, line.m, line.w, line.x, line.e,
        line.y) .. line.holder, unpack(line.set))
    end
    line.set, line.del, line.dirty = {}, {}, nil
  end
  for at = 1, #line.told, 2 do call(PUBLISH, line.told[at], line.told[at + 1]) end
  line.told = {}
  if line.changed then
    if call('EXISTS', WATCH) == 1 then
      local said = (line.freed and 'f ' or 'e ') .. line.key .. ' ' .. (line.said and sub(line.said, 102) or '')
      call(PUBLISH, line.key .. ':changes', said)
      if EVERYWHERE then call(PUBLISH, EVERYWHERE, said) end
    end
    line.changed, line.freed = nil, nil
  end
end

-- Takes out whoever's lease has ended: everybody inside, and the ticket that was asked about. Afterwards no lease inside
-- ends before `line.x`.
local function sweep(line)
  local own = line.own
  if line.sole then
    if line.x <= now then drop(line, line.sole, line.first) end
    return
  end
  while line.m > 0 and line.x <= now do
    local ids = {line.holder}
    if line.holder == '' then ids = call('ZRANGEBYSCORE', line.lapse, '-inf', time, 'LIMIT', '0', '1000') end
    if #ids > 0 then
      local found = call('HMGET', line.hash, unpack(ids))
      for at = 1, #ids do
        if found[at] then drop(line, ids[at], found[at]) else call('ZREM', line.lapse, ids[at]) end
      end
    end
    if line.m > 0 then
      local first = call('ZRANGE', line.lapse, '0', '0', 'WITHSCORES')
      if not first[2] then return repair(line) end
      line.x, line.dirty = tonumber(first[2]), true
    end
  end
  if line.own and not is_inside(line.own) and expiry_of(line.own) <= now then
    drop(line, sub(own, 69, 100), own)
  end
end

-- The line as it is now: the lapsed are out, whoever fits is in.
local function open(at, id, short)
  local line = read(at, id, short)
  sweep(line)
  if line.w > 0 and line.i < line.p then admit(line) end
  if line.changed or line.dirty then settle(line) end
  return line
end

-- The keys of the long form live at least until `expiry` and the floor's time after it.
local function keep(line, expiry, lease)
  local need = math.ceil((math.max(expiry, line.n) + FLOOR) / 1000)
  if line.e < need then
    -- Longer than they must, so that the next tickets need not do it again.
    line.e, line.dirty = need + math.ceil(lease / 1000), true
    local e = string.format('%d', line.e)
    call('PEXPIREAT', line.hash, e)
    call('PEXPIREAT', line.queue, e)
    if line.holder == '' then call('PEXPIREAT', line.lapse, e) end
  end
end

-- From here on the line has the long form, with this one ticket in it; `settle` writes its counters.
local function unfold(line, id, record)
  local weight, expiry = weight_of(record), expiry_of(record)
  call('DEL', line.queue, line.lapse, line.hash)
  call('HSET', line.hash, id, record)
  call('DEL', line.key)
  line.i, line.m, line.w, line.e = weight, 1, 0, 0
  line.sole, line.first, line.long, line.emptied, line.dirty = nil, nil, true, nil, true
  line.holder = weight == line.p and id or ''
  line.x = expiry
  if line.holder == '' then call('ZADD', line.lapse, text(expiry), id) end
  keep(line, expiry, expiry - now)
end

-- Writes down a ticket that is alone: in the short form, unless the numbers are ahead of the clock.
local function alone(line, id, record)
  if line.n > now then return unfold(line, id, record) end
  local expiry = expiry_of(record)
  call('SET', line.key, '1 ' .. text(line.n) .. ' ---------- ' .. record, 'PX',
    string.format('%d', math.max(math.ceil((expiry - now + FLOOR) / 1000), 1)))
  if line.long then call('DEL', line.hash, line.queue, line.lapse) end
  line.i, line.m, line.w, line.x, line.holder = weight_of(record), 1, 0, expiry, ''
  line.sole, line.first, line.long, line.emptied = id, record, nil, nil
end

-- Moves the expiry of a ticket that is there; never to an earlier time. Says how long it is there from now.
local function extend(line, id, record, lease)
  local expiry = expiry_of(record)
  if now + lease <= expiry then return expiry - now end
  expiry = now + lease
  record = sub(record, 1, 17) .. text(expiry) .. sub(record, 34)
  if line.sole then
    alone(line, id, record)
  else
    call('HSET', line.hash, id, record)
    if line.holder == id then
      line.x, line.dirty = expiry, true
    elseif is_inside(record) then
      call('ZADD', line.lapse, text(expiry), id)
    end
    keep(line, expiry, lease)
  end
  line.own = record
  return lease
end

-- Somebody who waits is told when the next lease ends.
local function told_of(line)
  local ends = math.min(line.x, line.next or NEVER)
  if ends > line.y then line.y, line.dirty = ends, true end
end

-- "1 lease number" inside, "2 lease number next-lapse" waiting; times in us from now.
local function place(line, record, lease)
  local said = string.format('%d', lease) .. ' ' .. sub(record, 1, 16)
  if is_inside(record) then return '1 ' .. said end
  return '2 ' .. said .. ' ' .. string.format('%d', math.max(math.min(line.x, line.next or NEVER) - now, 0))
end

-- Somebody who is inside, other than `id`; else somebody who waits.
local function head(line, id)
  if line.sole then return line.sole ~= id and shown(line.first) end
  if not line.long then return end
  if line.holder ~= '' and line.holder ~= id then return shown(call('HGET', line.hash, line.holder)) end
  for _, index in ipairs({line.lapse, line.queue}) do
    for _, other in ipairs(index == line.lapse and line.holder ~= '' and {} or call('ZRANGE', index, '0', '2')) do
      local found = other ~= id and call('HGET', line.hash, other)
      if found then return shown(found) end
    end
  end
end
