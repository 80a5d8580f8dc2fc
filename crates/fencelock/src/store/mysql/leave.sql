-- Takes a ticket out, by its id or its number: {i}, {name}, {which}. @o is whose it was, NULL if it was not there.
SELECT MAX(id), MAX(number) INTO @o{i}, @g{i} FROM fencelock_ticket WHERE name = {name} AND {which};
DELETE FROM fencelock_ticket WHERE name = {name} AND number = @g{i};
SET @s{i} = @s{i} + ROW_COUNT(), @d{i} = @d{i} + ROW_COUNT();
