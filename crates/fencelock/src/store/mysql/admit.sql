-- Lets in whoever fits by now, and writes the line's sums anew: {i}, {name}, {soonest}. The first ticket that does not fit with all that is
-- ahead of it blocks the rest. Who joins just now has no lease yet: {soonest} is when it may end at the earliest.
-- Read by SELECT INTO, here and everywhere: a SELECT inside a SET locks what it reads, which is one lock too many to be sure that
-- nothing deadlocks (the UPDATE looks at the first ticket of the next line too, to know where ours ends). A line that has given no
-- number yet is not to be entered by take.sql, which does not know the floor.
SELECT COALESCE(MIN(IF(w.ahead > w.capacity, w.number, NULL)), 9223372036854775807), COUNT(*), COALESCE(MAX(w.ahead), 0),
  COALESCE(MAX(IF(w.ahead > w.capacity, 0, w.ahead)), 0), COALESCE(MAX(IF(w.ahead > w.capacity, 0, w.number)), 0),
  COALESCE(MIN(w.number), 0), COALESCE(MIN(IF(w.expiry > @now, w.expiry, NULL)), 9223372036854775807), MAX(w.capacity)
  INTO @b, @m{i}, @total, @inside, @frontier, @head, @earliest, @capacity
  FROM (SELECT number, capacity, expiry, SUM(weight) OVER (ORDER BY number) AS ahead FROM fencelock_ticket WHERE name = {name}) w;
UPDATE fencelock_ticket SET admitted = @now WHERE name = {name} AND admitted IS NULL AND number < @b;
UPDATE fencelock_line SET touched = IF(@s{i} > 0, @now, touched), many = @m{i} > 0 OR last = 0, expiry = 0, frontier = @frontier,
  inside = @inside, total = @total, head = @head, earliest = LEAST(@earliest, {soonest}), capacity = COALESCE(@capacity, capacity),
  changes = changes + (@d{i} > 0) WHERE name = {name};
