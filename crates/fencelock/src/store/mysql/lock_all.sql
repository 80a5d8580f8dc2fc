-- Locks these lines, sorted as they are: {names}.
SELECT name FROM fencelock_line FORCE INDEX (PRIMARY) WHERE name IN ({names}) ORDER BY name FOR UPDATE;
