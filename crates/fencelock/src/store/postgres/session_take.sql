-- Tries for one exclusive lock (mode=session) while our flag is up. Its number, or NULL.
SELECT CASE WHEN pg_try_advisory_lock($1) THEN nextval('fencelock.session_token') END AS token, pg_backend_pid() AS backend
