-- Whether the flag of another client is up (mode=session): all flags have `$1`, ours has `$2`, and that of our other connection
-- differs from it in its last bit.
SELECT EXISTS (
  SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
    AND l.classid::bigint = $1::bigint & 4294967295 AND l.objid::bigint & 4294967294 <> $2::bigint & 4294967294
    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
) AS behind
