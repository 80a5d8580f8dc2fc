-- Writes rows (mode=session): the marker, and then of each its name, id, long name, key, whether it is shared, number, how many
-- microseconds ago it entered and was admitted, and the rest of what it says.
INSERT INTO fencelock.session AS s
SELECT r.name, r.id, r.long, r.key, $1, r.shared, r.number, clock_timestamp() - r.entered * interval '1 microsecond',
  clock_timestamp() - r.admitted * interval '1 microsecond', r.owner, r.host, r.pid, r.identity, r.reason, r.value
FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
  AS r (name, id, long, key, shared, number, entered, admitted, owner, host, pid, identity, reason, value)
ON CONFLICT (name, id) DO UPDATE SET shared = excluded.shared, number = excluded.number, admitted = excluded.admitted,
  host = excluded.host, pid = excluded.pid, identity = excluded.identity, reason = excluded.reason, value = excluded.value
