-- Gives locks back (mode=session). One row at least, which says who has answered.
SELECT pg_backend_pid() AS backend, (SELECT count(CASE WHEN l.shared THEN pg_advisory_unlock_shared(l.key) ELSE pg_advisory_unlock(l.key) END)
  FROM unnest($1, $2) AS l (key, shared))
