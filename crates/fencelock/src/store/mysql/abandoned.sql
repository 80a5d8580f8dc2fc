-- Lines that nobody has used for {idle}, after {after}, at most {limit}: to be locked and looked at again.
SELECT name FROM fencelock_line WHERE name > {after} ORDER BY name LIMIT {limit};
SELECT l.name FROM (SELECT name, touched, kept, expiry FROM fencelock_line WHERE name > {after} ORDER BY name LIMIT {limit}) l
  WHERE l.kept = 0 AND l.touched < @now - {idle} AND l.expiry <= @now
  AND NOT EXISTS (SELECT 1 FROM fencelock_ticket t WHERE t.name = l.name AND t.expiry > @now);
