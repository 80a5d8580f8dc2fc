-- Locks a line: {i}, {name}. @l is its last number, NULL if there is no such line.
SET @l{i} = NULL;
SELECT last INTO @l{i} FROM fencelock_line WHERE name = {name} FOR UPDATE;
