-- renew: tickets stay for longer; never brings back one that is gone. With a lease of 0 it only looks.
-- KEYS  of each ticket's line, see line.lua
-- ARGV  three for each ticket: id, lease us, the least that the line's last number must be (or 0)
-- Says  for each ticket: "0" gone, "1 lease number" inside, "2 lease number next-lapse" waiting

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local time = string.format('%016d', now)

--<line>

local answers = {}
for at = 1, #ARGV / 3 do
  local id, lease, least = ARGV[at * 3 - 2], tonumber(ARGV[at * 3 - 1]), tonumber(ARGV[at * 3])
  local line = open(at, id)
  if not line.own then
    answers[at] = '0'
  else
    if least > line.n then
      line.n = least
      if line.sole then
        alone(line, id, line.own)
      else
        line.dirty = true
        keep(line, expiry_of(line.own), lease)
      end
    end
    lease = extend(line, id, line.own, lease)
    if not is_inside(line.own) then told_of(line) end
    settle(line)
    answers[at] = place(line, line.own, lease)
  end
end
return answers
