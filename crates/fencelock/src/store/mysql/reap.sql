-- Takes out a line that is locked, if nobody is in it: {i}, {name}, {idle}. Its numbers go on above the floor, which is raised
-- first.
SELECT MAX(last) INTO @e FROM fencelock_line WHERE name = {name} AND kept = 0 AND touched < @now - {idle} AND expiry <= @now
  AND NOT EXISTS (SELECT 1 FROM fencelock_ticket t WHERE t.name = {name} AND t.expiry > @now);
DELETE FROM fencelock_ticket WHERE name = {name} AND @e IS NOT NULL;
UPDATE fencelock_layout SET floor = GREATEST(floor, @e) WHERE one = 1 AND @e > floor;
DELETE FROM fencelock_line WHERE name = {name} AND @e IS NOT NULL;
SET @reaped = @reaped + ROW_COUNT();
