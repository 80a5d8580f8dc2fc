-- Leaves a line that others are in, and lets in the next one, by the line's sums: {name}, {id}, {client}. @w: 1 done, 2 it was not there; NULL: nothing was
-- done, since somebody may have lapsed, or more than one comes in by that. Nine statements; touches the line's row, the ticket's and the next
-- two's. Somebody else's ticket may be waited for where nobody knows that it went: that is a change.
/*M!100101 BEGIN NOT ATOMIC */
START TRANSACTION;
SELECT MAX(last), MAX(many), MAX(expiry), MAX(earliest), MAX(frontier), MAX(inside), MAX(total), MAX(head), MAX(capacity),
  MAX(CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)), NULL, NULL, NULL, NULL, NULL
  INTO @last, @many, @alone, @earliest, @frontier, @inside, @total, @head, @capacity, @now, @next, @heavy, @whose, @theirs, @more
  FROM fencelock_line WHERE name = {name} FOR UPDATE;
SELECT t.number, t.weight, t.id, t.client,
  (SELECT k.weight FROM fencelock_ticket k WHERE k.name = {name} AND k.number > t.number ORDER BY k.number LIMIT 1)
  INTO @next, @heavy, @whose, @theirs, @more FROM fencelock_ticket t WHERE t.name = {name} AND t.number > @frontier ORDER BY t.number LIMIT 1;
SELECT MAX(number), MAX(weight), MAX(client) <> {client}, COALESCE(MAX(number) <= @frontier AND @inside - MAX(weight) + @heavy <= @capacity, 0),
  CASE WHEN @last IS NULL THEN 2 WHEN @many = 0 OR @alone > 0 OR @total = 0 OR @earliest <= @now THEN NULL WHEN COUNT(*) = 0 THEN 2
  WHEN MAX(number) > @frontier THEN IF(MAX(number) > @next, 1, NULL)
  WHEN @inside - MAX(weight) + @heavy + @more <= @capacity THEN NULL ELSE 1 END
  INTO @number, @weight, @foreign, @fits, @w FROM fencelock_ticket WHERE id = {id} AND name = {name};
DELETE FROM fencelock_ticket WHERE name = {name} AND number = @number AND @w = 1;
UPDATE fencelock_ticket SET admitted = @now WHERE name = {name} AND number = @next AND @w = 1 AND @fits = 1;
UPDATE fencelock_line SET touched = @now, many = @total > @weight, total = @total - @weight,
  inside = @inside - IF(@number > @frontier, 0, @weight) + IF(@fits = 1, @heavy, 0), frontier = IF(@fits = 1, @next, @frontier),
  head = IF(@fits = 1 AND @inside = @weight, @next, IF(@number = @head, @head + 1, @head)), changes = changes + (@number > @frontier OR @foreign)
  WHERE name = {name} AND @w = 1;
COMMIT;
SELECT @w, IF(@fits = 1 AND @theirs = {client}, LOWER(HEX(@whose)), NULL), @next, @total - @weight
/*M!100101 ; END */
