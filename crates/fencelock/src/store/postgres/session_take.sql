-- Tries for one exclusive lock (mode=session): `got` is NULL if another name may have the same key. What is not got, session_take says
-- more of. One statement of plain SQL: a function would cost three times as much as what is done here.
WITH tried AS MATERIALIZED (
  SELECT CASE WHEN EXISTS (SELECT FROM fencelock.session s WHERE s.key = $5 AND s.name <> $2) THEN NULL
    ELSE pg_try_advisory_lock($5) END AS got
), kept AS (
  INSERT INTO fencelock.session AS s
  SELECT $2, $4, $3, $5, $1, false, nextval('fencelock.session_token'), clock_timestamp(), clock_timestamp(), $6, $7, $8, $9, $10, $11
  FROM tried WHERE tried.got
  ON CONFLICT (name, id) DO UPDATE SET number = excluded.number, admitted = excluded.admitted
  RETURNING s.number
)
SELECT tried.got, (SELECT kept.number FROM kept) AS token, pg_backend_pid() AS backend FROM tried
