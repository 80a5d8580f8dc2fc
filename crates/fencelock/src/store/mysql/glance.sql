-- How far lines have come, without a lock and without a look at their tickets: {names}.
SELECT name, many, frontier, head, changes, earliest - CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) FROM fencelock_line WHERE name IN ({names})
