-- Takes the flag ($1, $2) down, `$3` times (mode=session).
SELECT pg_backend_pid() AS backend, (SELECT count(pg_advisory_unlock($1, $2)) FROM generate_series(1, $3))
