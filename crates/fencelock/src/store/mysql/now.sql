-- The time, once everything is locked; and the floor that new lines begin above.
SET @now = CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), @refused = 0;
SELECT floor INTO @floor FROM fencelock_layout WHERE one = 1;
