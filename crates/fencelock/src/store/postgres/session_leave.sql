-- Gives one exclusive lock back (mode=session).
SELECT pg_backend_pid() AS backend, pg_advisory_unlock($1)
