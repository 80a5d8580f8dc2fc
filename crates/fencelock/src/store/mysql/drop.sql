-- Leaves a line that nobody else is in, by one statement: {name}, {id}. No changed row: it is not there, or not alone.
UPDATE fencelock_line SET expiry = 0, touched = CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)
  WHERE name = {name} AND id = {id} AND expiry > CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)
