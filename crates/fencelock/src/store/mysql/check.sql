-- Whether a ticket may join: {i}, {name}, {id}, {weight}, {capacity}, {queue}. @w: 0 yes, 2 full, 3 another capacity, 4 there is
-- no line yet. Whatever is not 0 refuses the whole batch.
SELECT MAX(IF(id = {id}, number, NULL)), MIN(number), COALESCE(SUM(weight), 0) INTO @k{i}, @h{i}, @t{i}
  FROM fencelock_ticket WHERE name = {name};
SELECT MAX(capacity) INTO @c{i} FROM fencelock_ticket WHERE name = {name} AND number = @h{i};
SET @w{i} = CASE WHEN @l{i} IS NULL THEN 4 WHEN @k{i} IS NOT NULL THEN 0 WHEN @c{i} <> {capacity} THEN 3
  WHEN NOT {queue} AND @t{i} + {weight} > {capacity} THEN 2 ELSE 0 END;
SET @refused = GREATEST(@refused, @w{i});
