-- Raises the last number of a line to {at_least}, if the ticket is there: {name}, {id}.
UPDATE fencelock_line SET last = {at_least} WHERE name = {name} AND last < {at_least} AND ((id = {id} AND expiry > @now)
  OR EXISTS (SELECT 1 FROM fencelock_ticket t WHERE t.name = {name} AND t.id = {id} AND t.expiry > @now));
