-- Takes out a line that is locked and empty: {i}, {name}, {idle}. Its numbers go on above the floor, which is raised first.
SET @e = NULL;
SELECT last INTO @e FROM fencelock_line WHERE name = {name} AND kept = 0 AND touched < @now - {idle}
  AND NOT EXISTS (SELECT 1 FROM fencelock_ticket t WHERE t.name = {name});
UPDATE fencelock_layout SET floor = GREATEST(floor, @e) WHERE one = 1 AND @e > floor;
DELETE FROM fencelock_line WHERE name = {name} AND @e IS NOT NULL;
SET @reaped = @reaped + ROW_COUNT();
