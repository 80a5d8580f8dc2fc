-- load: what a register holds.
-- KEYS  the register: "1 version write value", or "0 version write" for a while after it was deleted
-- Says  {"1", version, value} or {"0", version}: of a register without a value, the time in us

local kept = redis.call('GET', KEYS[1])
if kept then
  local mark, version, length = string.match(kept, '^([01]) (%d+) %x+ ?()')
  if not mark then return redis.error_reply('FENCELOCK LAYOUT ' .. (string.match(kept, '^%w+') or 'unknown')) end
  if mark == '1' then return {mark, version, string.sub(kept, length)} end
end
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
if kept then now = math.max(now, tonumber((string.match(kept, '^0 (%d+)')))) end
return {'0', string.format('%.0f', now)}
