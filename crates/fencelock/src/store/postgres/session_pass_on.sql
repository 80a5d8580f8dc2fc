-- New numbers for locks that are passed on within a client (mode=session).
SELECT nextval('fencelock.session_token') AS token, pg_backend_pid() AS backend FROM generate_series(1, $1)
