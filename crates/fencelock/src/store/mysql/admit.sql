-- Lets in whoever fits by now: {i}, {name}. The first ticket that does not fit with all that is ahead of it blocks the rest.
SET @b = (SELECT MIN(w.number) FROM (SELECT number, capacity, SUM(weight) OVER (ORDER BY number) AS ahead
  FROM fencelock_ticket WHERE name = {name}) w WHERE w.ahead > w.capacity);
UPDATE fencelock_ticket SET admitted = @now
  WHERE name = {name} AND admitted IS NULL AND number < COALESCE(@b, 9223372036854775807);
UPDATE fencelock_line SET touched = @now WHERE name = {name} AND @s{i} > 0;
