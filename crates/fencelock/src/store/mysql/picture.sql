-- A line as others see it, without a lock: {name}. Who is in it, in order, and whether somebody has lapsed.
SELECT t.number, t.mode, t.weight, t.capacity, LOWER(HEX(t.owner)), t.host, t.pid, t.identity, t.reason, n.now - t.entered,
  n.now - t.admitted, t.expiry - n.now, t.value
  FROM (SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) AS now) n JOIN fencelock_ticket t ON t.name = {name}
UNION ALL
SELECT l.number, l.mode, l.weight, l.capacity, LOWER(HEX(l.owner)), l.host, l.pid, l.identity, l.reason, n.now - l.entered,
  n.now - l.entered, l.expiry - n.now, l.value
  FROM (SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) AS now) n JOIN fencelock_line l ON l.name = {name} AND l.expiry > n.now
ORDER BY 1
