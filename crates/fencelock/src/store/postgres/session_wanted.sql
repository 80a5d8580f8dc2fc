-- Whether a client other than the one with marker `$2` is seen to wait for a name (mode=session).
SELECT EXISTS (
  SELECT FROM fencelock.session s WHERE s.name = $1 AND s.number IS NULL AND s.marker <> $2 AND s.marker IN (SELECT fencelock.markers())
) AS wanted
