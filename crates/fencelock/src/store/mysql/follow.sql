-- Joins at the end of a line that others are in, by its sums: {name}, {id}, {weight}, {capacity}, {queue}, {mode}, {client}, {owner}, {held},
-- {host}, {pid}, {identity}, {reason}, {value}, {lease}, {waiting}. @w: 0 it is inside, 1 it waits, 2 full; NULL: nothing was done, since the line is
-- empty, or somebody in it may have lapsed, or the ticket is there already, or the capacity is another one. Eight statements; touches the line's row,
-- the ticket's and the first one's.
/*M!100101 BEGIN NOT ATOMIC */
START TRANSACTION;
SELECT MAX(last), MAX(many), MAX(expiry), MAX(earliest), MAX(frontier), MAX(inside), MAX(total), MAX(head), MAX(capacity), MAX(changes),
  MAX(CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED))
  INTO @last, @many, @alone, @earliest, @frontier, @inside, @total, @head, @capacity, @changes, @now
  FROM fencelock_line WHERE name = {name} FOR UPDATE;
SELECT CASE WHEN COUNT(*) > 0 OR COALESCE(@last, 0) = 0 OR @many = 0 OR @alone > 0 OR @total = 0 OR @earliest <= @now OR @capacity <> {capacity} THEN NULL
  WHEN @inside = @total AND @total + {weight} <= {capacity} THEN 0 WHEN {queue} OR @total + {weight} <= {capacity} THEN 1 ELSE 2 END INTO @w
  FROM fencelock_ticket WHERE id = {id} AND name = {name};
INSERT INTO fencelock_ticket SELECT {name}, @last + 1, {id}, {weight}, {capacity}, {mode}, {client}, @now, IF(@w = 0, @now, NULL),
  @now + IF(@w = 0, {lease}, {waiting}), {owner}, {held}, {host}, {pid}, {identity}, {reason}, {value} FROM DUAL WHERE @w < 2;
UPDATE fencelock_line SET last = @last + 1, touched = @now, total = @total + {weight}, inside = IF(@w = 0, @total + {weight}, @inside),
  frontier = IF(@w = 0, @last + 1, @frontier), earliest = LEAST(@earliest, @now + {waiting}) WHERE name = {name} AND @w < 2;
COMMIT;
SELECT number, mode, weight, capacity, LOWER(HEX(owner)), host, pid, identity, reason, @now - entered, @now - admitted,
  expiry - @now, value FROM fencelock_ticket WHERE name = {name} AND number >= @head AND number <= @last ORDER BY number LIMIT 1;
SELECT @w, @last + 1, IF(@w = 0, {lease}, {waiting}), @changes, @frontier, @many
/*M!100101 ; END */
