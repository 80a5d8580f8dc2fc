-- Locks these lines, in the order of their key: {names}.
SELECT COUNT(*) INTO @locked FROM fencelock_line FORCE INDEX (PRIMARY) WHERE name IN ({names}) FOR UPDATE;
