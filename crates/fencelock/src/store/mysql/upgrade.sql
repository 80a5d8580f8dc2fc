-- Replaces a ticket that is alone by one with all of the capacity: {i}, {name}, {id}, {new}. @u: 0 done, 1 held, 2 gone.
SELECT MAX(IF(id = {new}, number, NULL)), MAX(IF(id = {id}, number, NULL)), COUNT(*) INTO @k, @g, @h
  FROM fencelock_ticket WHERE name = {name};
SET @u = CASE WHEN @k IS NOT NULL THEN 0 WHEN @g IS NULL THEN 2 WHEN @h > 1 THEN 1 ELSE 0 END;
SET @n = COALESCE(@k, @l{i} + 1);
UPDATE fencelock_ticket SET id = {new}, number = @n, weight = capacity, mode = 0, admitted = @now
  WHERE name = {name} AND number = @g AND @u = 0 AND @k IS NULL;
SET @s{i} = @s{i} + ROW_COUNT();
UPDATE fencelock_line SET last = GREATEST(last, @n), touched = @now, frontier = @n, head = @n, inside = capacity, total = capacity
  WHERE name = {name} AND @u = 0 AND @k IS NULL;
SELECT @u, @n;
