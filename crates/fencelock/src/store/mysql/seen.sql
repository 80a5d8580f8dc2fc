-- Tickets of a line as others see them, in order: {name}, {where}, {limit}.
SELECT number, mode, weight, capacity, LOWER(HEX(owner)), host, pid, identity, reason, @now - entered, @now - admitted,
  expiry - @now, value FROM fencelock_ticket WHERE name = {name} AND expiry > @now {where} ORDER BY number LIMIT {limit};
