-- store_if: writes or deletes a register if nobody else has since a version was loaded.
-- KEYS  the register: see load.lua
-- ARGV  the version, the id of the write, 1 to write or 0 to delete, the value
-- Says  the new version, or "0" if somebody else was faster

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local seen = tonumber(ARGV[1])
-- So long a deletion is remembered, in ms. Who saw no value longer ago than that may have missed one, and has to look again.
local remembered = 60000

local kept = redis.call('GET', KEYS[1])
local mark, version, write = '0', 0, ''
if kept then
  mark, version, write = string.match(kept, '^([01]) (%d+) (%x+)')
  if not mark then return redis.error_reply('FENCELOCK LAYOUT ' .. (string.match(kept, '^%w+') or 'unknown')) end
  if write == ARGV[2] then return version end
  version = tonumber(version)
end
if mark == '1' then
  if version ~= seen then return '0' end
else
  if seen < version or seen < now - remembered * 1000 + 1000000 then return '0' end
  if ARGV[3] == '0' then return ARGV[1] end
end
-- As a token: it goes on growing although the key is gone.
local next = string.format('%.0f', math.max(now, version + 1, seen + 1))
if ARGV[3] == '1' then
  redis.call('SET', KEYS[1], '1 ' .. next .. ' ' .. ARGV[2] .. ' ' .. ARGV[4])
else
  redis.call('SET', KEYS[1], '0 ' .. next .. ' ' .. ARGV[2], 'PX', remembered)
end
return next
