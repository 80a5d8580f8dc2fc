-- The fence at the head of a script of the caller's. KEYS[1] is the hash of the marks; ARGV[1] the field (label and name),
-- ARGV[2] the token, ARGV[3] its mode. Marks and tokens are 20 digits each and compared as text: a number of Lua ends at 2^53.
local marks = redis.call('HGET', KEYS[1], ARGV[1]) or string.rep('0', 20) .. ' ' .. string.rep('0', 20)
if #marks ~= 41 then return redis.error_reply('FENCEDAMAGED ' .. ARGV[1]) end
local exclusive, shared = string.sub(marks, 1, 20), string.sub(marks, 22)
local by = exclusive
if ARGV[3] == 'exclusive' and shared > by then by = shared end
if ARGV[2] < by then return redis.error_reply('OVERTAKEN ' .. by) end
if ARGV[3] == 'exclusive' then
  exclusive = ARGV[2]
elseif ARGV[2] > shared then
  shared = ARGV[2]
end
redis.call('HSET', KEYS[1], ARGV[1], exclusive .. ' ' .. shared)
-- From here on the caller's own.
local KEYS, ARGV = {unpack(KEYS, 2)}, {unpack(ARGV, 4)}
