-- Lines with somebody in them: {prefix}, {length}, {from}, {limit}.
(SELECT l.name, l.said, COUNT(t.admitted), COUNT(*) - COUNT(t.admitted), @now - MIN(COALESCE(t.admitted, t.entered)),
  (SELECT MIN(k.expiry) FROM fencelock_ticket k WHERE k.name = l.name) <= @now
  FROM fencelock_line l JOIN fencelock_ticket t ON t.name = l.name AND t.expiry > @now
  WHERE {from} AND LEFT(l.name, {length}) = {prefix} GROUP BY l.name ORDER BY l.name LIMIT {limit})
UNION ALL
(SELECT l.name, l.said, 1, 0, @now - l.entered, 0 FROM fencelock_line l
  WHERE {from} AND LEFT(l.name, {length}) = {prefix} AND l.expiry > @now ORDER BY l.name LIMIT {limit})
ORDER BY 1 LIMIT {limit};
