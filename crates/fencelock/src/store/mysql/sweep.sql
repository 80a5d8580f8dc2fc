-- Takes out the lapsed tickets of a line: {i}, {name}. @s is how many.
DELETE FROM fencelock_ticket WHERE name = {name} AND expiry <= @now;
SET @s{i} = ROW_COUNT();
