-- Gives one exclusive lock back (mode=session), and takes out its row.
WITH gone AS (DELETE FROM fencelock.session s WHERE s.name = $1 AND s.id = $2)
SELECT pg_backend_pid() AS backend, pg_advisory_unlock($3)
