-- The time, once everything is locked; and the floor that new lines begin above.
SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), floor, 0 INTO @now, @floor, @refused FROM fencelock_layout WHERE one = 1;
