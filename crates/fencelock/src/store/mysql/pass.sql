-- Leaves a line that others are in, and lets in the next one, by the line's sums: {name}, {id}, {client}. @w: 1 done, 2 it was not there; NULL: nothing was
-- done, since somebody may have lapsed, or more than one comes in by that, or the first one that waits is the one that leaves. Nine statements; touches the
-- line's row, the ticket's and the next two's. Somebody else's ticket may be waited for where nobody knows that it went: that is a change.
SET @w = 2;
START TRANSACTION;
SELECT l.frontier, l.inside, l.total, l.head, l.capacity, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED),
  t.number, t.weight, t.client <> {client}, NULL, 0,
  IF(l.many = 0 OR l.expiry > 0 OR l.total = 0 OR l.earliest <= CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), NULL, IF(t.number IS NULL, 2, 1))
  INTO @frontier, @inside, @total, @head, @capacity, @now, @number, @weight, @foreign, @next, @fits, @w
  FROM fencelock_line l LEFT JOIN fencelock_ticket t ON t.id = {id} AND t.name = {name} WHERE l.name = {name} LIMIT 1 FOR UPDATE;
SELECT t.number, t.weight, t.id, t.client, @number <= @frontier AND @inside - @weight + t.weight <= @capacity,
  CASE WHEN @w = 2 THEN 2 WHEN @number > @frontier THEN IF(@number = t.number, NULL, @w) WHEN @inside - @weight + t.weight < @capacity AND @inside - @weight + t.weight +
  (SELECT k.weight FROM fencelock_ticket k WHERE k.name = {name} AND k.number > t.number ORDER BY k.number LIMIT 1) <= @capacity THEN NULL ELSE @w END
  INTO @next, @heavy, @whose, @theirs, @fits, @w FROM fencelock_ticket t WHERE t.name = {name} AND t.number > @frontier ORDER BY t.number LIMIT 1;
DELETE FROM fencelock_ticket WHERE name = {name} AND number = @number AND @w = 1;
UPDATE fencelock_ticket SET admitted = @now WHERE name = {name} AND number = @next AND @w = 1 AND @fits = 1;
UPDATE fencelock_line SET touched = @now, many = @total > @weight, total = @total - @weight,
  inside = @inside - IF(@number > @frontier, 0, @weight) + IF(@fits = 1, @heavy, 0), frontier = IF(@fits = 1, @next, @frontier),
  head = IF(@fits = 1 AND @inside = @weight, @next, IF(@number = @head, @head + 1, @head)), changes = changes + (@number > @frontier OR @foreign)
  WHERE name = {name} AND @w = 1;
COMMIT;
SELECT @w, IF(@fits = 1 AND @theirs = {client}, LOWER(HEX(@whose)), NULL), @next, @total - @weight
