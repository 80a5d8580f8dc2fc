-- Joins at the end of a line that others are in, by its sums: {name}, {id}, {weight}, {capacity}, {queue}, {mode}, {client}, {owner}, {held},
-- {host}, {pid}, {identity}, {reason}, {value}, {lease}, {waiting}. Answers who is first, and then: 0 it is inside, 1 it waits, 2 full; NULL: nothing was done,
-- since the line is empty, or somebody in it may have lapsed, or the ticket is there already, or the capacity is another one. Eight
-- statements; touches the line's row, the ticket's and the first one's.
SET @w = NULL;
START TRANSACTION;
SELECT l.last, l.earliest, l.frontier, l.inside, l.total, l.head, l.changes, l.many, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED),
  IF(t.number IS NOT NULL OR l.last = 0 OR l.many = 0 OR l.expiry > 0 OR l.total = 0 OR l.capacity <> {capacity}, NULL,
  IF(l.total + {weight} <= {capacity}, 0, IF({queue}, 1, 2)))
  INTO @last, @earliest, @frontier, @inside, @total, @head, @changes, @many, @now, @w
  FROM fencelock_line l LEFT JOIN fencelock_ticket t ON t.id = {id} AND t.name = {name} WHERE l.name = {name} LIMIT 1 FOR UPDATE;
INSERT INTO fencelock_ticket SELECT {name}, @last + 1, {id}, {weight}, {capacity}, {mode}, {client}, @now, IF(@w = 0, @now, NULL),
  @now + IF(@w = 0, {lease}, {waiting}), {owner}, {held}, {host}, {pid}, {identity}, {reason}, {value} FROM DUAL WHERE @w < 2 AND @earliest > @now;
UPDATE fencelock_line SET last = @last + 1, touched = @now, total = @total + {weight}, inside = IF(@w = 0, @total + {weight}, @inside),
  frontier = IF(@w = 0, @last + 1, @frontier), earliest = LEAST(@earliest, @now + {waiting}) WHERE name = {name} AND @w < 2 AND @earliest > @now;
COMMIT;
SELECT number, mode, weight, capacity, LOWER(HEX(owner)), host, pid, identity, reason, @now - entered, @now - admitted,
  expiry - @now, value FROM fencelock_ticket WHERE name = {name} AND number >= @head AND number <= @last ORDER BY number LIMIT 1;
SELECT IF(@earliest > @now, @w, NULL), @last + 1, IF(@w = 0, {lease}, {waiting}), @changes, @frontier, @many
