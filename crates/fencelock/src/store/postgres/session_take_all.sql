-- Tries for locks (mode=session): their numbers, or NULL. Where `$5`, the flag ($6, $7) goes up once for each that is got or stays.
SELECT CASE WHEN CASE WHEN ask.stay AND $5 THEN NOT pg_try_advisory_lock($6, $7) ELSE false END THEN NULL
  WHEN CASE WHEN NOT ask.attempt THEN false WHEN ask.shared THEN pg_try_advisory_lock_shared(ask.key) ELSE pg_try_advisory_lock(ask.key) END
  THEN CASE WHEN CASE WHEN ask.stay OR NOT $5 THEN true ELSE pg_try_advisory_lock($6, $7) END THEN nextval('fencelock.session_token') END
  END AS token, pg_backend_pid() AS backend
FROM unnest($1, $2, $3, $4) AS ask (key, shared, attempt, stay)
