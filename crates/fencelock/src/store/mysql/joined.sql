-- Extends a ticket that joined, and says what became of it and who is first: {i}, {name}, {id}, {lease}, {waiting}, {client}.
UPDATE fencelock_ticket SET expiry = GREATEST(expiry, @now + IF(admitted IS NULL, {waiting}, {lease})), client = {client}
  WHERE name = {name} AND id = {id} AND @refused = 0;
SELECT @w{i}, @c{i}, @l{i} = 0, t.number, t.admitted, t.expiry - @now FROM (SELECT 1 AS one) o
  LEFT JOIN fencelock_ticket t ON t.name = {name} AND t.id = {id} AND @refused = 0;
