-- Lets in whoever fits by now: {i}, {name}. The first ticket that does not fit with all that is ahead of it blocks the rest.
-- Read by SELECT INTO, here and everywhere: a SELECT inside a SET locks what it reads, which is one lock too many to be sure that
-- nothing deadlocks (the UPDATE looks at the first ticket of the next line too, to know where ours ends). A line that has given no
-- number yet is not to be entered by take.sql, which does not know the floor.
SELECT COALESCE(MIN(IF(w.ahead > w.capacity, w.number, NULL)), 9223372036854775807), COUNT(*) INTO @b, @m{i}
  FROM (SELECT number, capacity, SUM(weight) OVER (ORDER BY number) AS ahead FROM fencelock_ticket WHERE name = {name}) w;
UPDATE fencelock_ticket SET admitted = @now WHERE name = {name} AND admitted IS NULL AND number < @b;
UPDATE fencelock_line SET touched = IF(@s{i} > 0, @now, touched), many = @m{i} > 0 OR last = 0, expiry = 0 WHERE name = {name};
