-- Locks a line: {i}, {name}. @l is its last number, NULL if there is no such line.
SELECT MAX(last) INTO @l{i} FROM fencelock_line WHERE name = {name} FOR UPDATE;
