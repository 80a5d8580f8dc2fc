-- What changes whenever something within a scope does (mode=session); and with every number that is given, since one that came and
-- went between two looks has left no row; and with who has a name, since one that goes may never have had one.
SELECT (SELECT t.last_value FROM fencelock.session_token t) || ' ' ||
  (SELECT coalesce(string_agg(l.pid::text, ',' ORDER BY l.pid), '') FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND ((l.classid::bigint << 32) | l.objid::bigint) = w.key
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) || ' ' ||
  (SELECT md5(coalesce(string_agg(s::text, ',' ORDER BY s.name, s.id), '')) FROM fencelock.session s
    WHERE s.name >= w.scope COLLATE "C" AND CASE WHEN w.prefix THEN starts_with(s.name, w.scope) ELSE s.name = w.scope END
      AND s.marker IN (SELECT fencelock.markers())) AS mark
FROM unnest($1, $2, $3) WITH ORDINALITY AS w (scope, prefix, key, i) ORDER BY w.i
