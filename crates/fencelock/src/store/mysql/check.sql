-- Whether a ticket may join: {i}, {name}, {id}, {weight}, {capacity}, {queue}. @w: 0 yes, 2 full, 3 another capacity, 4 there is
-- no line yet. Whatever is not 0 refuses the whole batch.
SET @k{i} = NULL, @c{i} = NULL;
SELECT number INTO @k{i} FROM fencelock_ticket WHERE name = {name} AND id = {id};
SELECT capacity INTO @c{i} FROM fencelock_ticket WHERE name = {name} ORDER BY number LIMIT 1;
SELECT COALESCE(SUM(weight), 0) INTO @t{i} FROM fencelock_ticket WHERE name = {name};
SET @w{i} = CASE WHEN @l{i} IS NULL THEN 4 WHEN @k{i} IS NOT NULL THEN 0 WHEN @c{i} <> {capacity} THEN 3
  WHEN NOT {queue} AND @t{i} + {weight} > {capacity} THEN 2 ELSE 0 END;
SET @refused = GREATEST(@refused, @w{i});
