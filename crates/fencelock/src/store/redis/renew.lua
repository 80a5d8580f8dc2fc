-- renew: tickets stay for longer; never brings back one that is gone. With a lease of 0 it only looks.
-- KEYS  four for each ticket (see line.lua), the watch key
-- ARGV  three for each ticket: id, lease us, the least that the line's last number must be (or 0)
-- Says  for each ticket: "0" gone, "1 lease number" inside, "2 lease number next-lapse" waiting

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--<line>

local answers = {}
for at = 1, #ARGV / 3 do
  local id, lease, least = ARGV[at * 3 - 2], tonumber(ARGV[at * 3 - 1]), tonumber(ARGV[at * 3])
  local line = open(at * 4 - 3, id)
  if not line.own then
    answers[at] = '0'
  else
    local ticket = line.own
    if least > line.n then
      line.n = least
      if line.sole then
        alone(line, id, ticket)
      else
        redis.call('HSET', line.hash, 'n', text(least))
        keep(line, ticket.expiry)
      end
    end
    answers[at] = place(line, ticket, extend(line, id, ticket, lease))
  end
end
return answers
