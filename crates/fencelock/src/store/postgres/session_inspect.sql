-- Who is in a line, in the order of coming (mode=session); and another name that is in use with the same key.
SELECT s.*, NULL AS other FROM fencelock.session_inspect($1) s
UNION ALL
(SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, coalesce(o.long, o.name) FROM fencelock.session o
  WHERE o.key = $2 AND o.name <> $1 AND o.marker IN (SELECT fencelock.markers()) LIMIT 1)
