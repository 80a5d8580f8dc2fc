-- Joins a line unless the batch was refused: {i}, {name}, {id}, {weight}, {capacity}, {mode}, {client}, {owner}, {held}, {host},
-- {pid}, {identity}, {reason}, {value}. One that is there already may be taken over from another client.
SET @n{i} = COALESCE(@k{i}, IF(@l{i} = 0, @floor, @l{i}) + 1);
INSERT INTO fencelock_ticket SELECT {name}, @n{i}, {id}, {weight}, {capacity}, {mode}, {client}, @now, NULL, @now, {owner},
  {held}, {host}, {pid}, {identity}, {reason}, {value} FROM DUAL WHERE @refused = 0 AND @k{i} IS NULL;
SET @s{i} = @s{i} + ROW_COUNT(), @d{i} = @d{i} + (@k{i} IS NOT NULL);
UPDATE fencelock_line SET last = @n{i} WHERE name = {name} AND @refused = 0 AND @k{i} IS NULL;
