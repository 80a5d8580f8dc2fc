-- Takes out those of these lines that nobody is in: {names}, in order, and {idle}. Their numbers go on above the floor, which is raised
-- first, once every line is locked. By their keys: who goes through the whole table waits for lines that others have locked, and they for ours.
SELECT name FROM fencelock_line FORCE INDEX (PRIMARY) WHERE name IN ({names}) ORDER BY name FOR UPDATE;
SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) INTO @now;
SELECT MAX(last) INTO @e FROM fencelock_line l WHERE l.name IN ({names}) AND l.kept = 0 AND l.touched < @now - {idle} AND l.expiry <= @now
  AND NOT EXISTS (SELECT 1 FROM fencelock_ticket t WHERE t.name = l.name AND t.expiry > @now);
UPDATE fencelock_layout SET floor = @e WHERE one = 1 AND @e > floor;
DELETE l FROM fencelock_line l FORCE INDEX (PRIMARY) WHERE l.name IN ({names}) AND l.kept = 0 AND l.touched < @now - {idle} AND l.expiry <= @now
  AND NOT EXISTS (SELECT 1 FROM fencelock_ticket t WHERE t.name = l.name AND t.expiry > @now);
SET @reaped = ROW_COUNT();
DELETE t FROM fencelock_ticket t FORCE INDEX (PRIMARY) WHERE t.name IN ({names}) AND NOT EXISTS (SELECT 1 FROM fencelock_line l WHERE l.name = t.name);
SELECT @reaped;
