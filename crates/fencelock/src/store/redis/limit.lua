-- limit: one decision of a limiter. It repeats limit/bucket.rs, which says what the numbers mean; all of them are whole and below 2^53.
-- KEYS  the bucket: a string "1 level cost at"
-- ARGV  1 leaky or 0 token, cost, give, room, free, count, the longest wait in us
-- Says  "1 wait" let through after so many us, "0 wait" refused

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local leaky = ARGV[1] == '1'
local cost, give, room = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local free, count, at_most = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local most = 4503599627370496

local function whole(number) return string.format('%.0f', number) end
-- Exact for whole numbers below 2^53.
local function parts(number, by) return math.floor(number / by) end
local function parts_up(number, by) return math.floor((number + by - 1) / by) end
-- How many milliseconds it takes a leaky bucket to lose this.
local function millis(level) return parts_up(level * 1000, give) end

if leaky then now = parts(now, 1000) * 1000 end
local kept = redis.call('GET', KEYS[1])
local level, at = 0, now
if kept then
  local layout, was, cost_then, when = string.match(kept, '^(%d+) (%d+) (%d+) (%d+)$')
  if layout ~= '1' then return redis.error_reply('FENCELOCK LAYOUT ' .. (string.match(kept, '^%w+') or 'unknown')) end
  level, at = tonumber(was), tonumber(when)
  if tonumber(cost_then) ~= cost then
    -- Another rule was in force: as many requests as before, rounded up.
    level = math.min(math.ceil(level / tonumber(cost_then) * cost), leaky and room or most)
  end
  if at > now + 60000000 then at = now end
end

local passed = math.max(0, now - at)
local after
if not leaky then
  local given = level
  if passed < parts_up(level, give) then given = passed * give end
  after = level - given + count * cost
elseif not kept then
  after = (count - 1) * cost
else
  local leaked = level + cost
  if parts(passed, 1000) < millis(level + cost) then leaked = parts(give * parts(passed, 1000), 1000) end
  after = math.max(0, level + cost - leaked) + (count - 1) * cost
end

local wait, granted
if leaky then
  wait = parts(math.max(0, after - free) * 1000, give) * 1000
  granted = after <= room and wait <= at_most
else
  wait = parts_up(math.max(0, after - room), give)
  granted = wait <= at_most
end

if not granted then
  if leaky then
    local over = math.max(0, level + count * cost - math.max(math.min(room, free), (count - 1) * cost))
    wait = math.max(0, at + millis(over) * 1000 - now)
  else
    wait = wait + math.max(0, at - now)
  end
  return '0 ' .. whole(wait)
end
if not (leaky and passed == 0) then at = math.max(now, at) end
-- Kept until it is as good as none; a millisecond more, since the server rounds.
local fresh = leaky and millis(after + cost) or parts_up(parts_up(after, give), 1000)
local from_now = parts_up(at - now, 1000)
redis.call('SET', KEYS[1], '1 ' .. whole(after) .. ' ' .. whole(cost) .. ' ' .. whole(at), 'PX', whole(fresh + from_now + 1))
return '1 ' .. whole(wait)
