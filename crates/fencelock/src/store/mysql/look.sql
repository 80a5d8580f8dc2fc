-- What became of tickets, without a lock: {ids}, {names}; then for how long nobody in their lines can lapse. One statement, so that it is one
-- picture; and whose they are. Only for who is new here, and where the line's row does not say it: glance.sql.
SELECT 0, LOWER(HEX(t.id)), t.name, t.number, t.admitted, t.expiry - CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), n.changes, t.client
  FROM fencelock_ticket t JOIN fencelock_line n ON n.name = t.name WHERE t.id IN ({ids})
UNION ALL
SELECT 0, LOWER(HEX(l.id)), l.name, l.number, l.entered, l.expiry - CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), 0, ''
  FROM fencelock_line l WHERE l.name IN ({names}) AND l.expiry > 0 AND l.id IN ({ids})
UNION ALL
SELECT 1, '', t.name, 0, NULL, MIN(t.expiry) - CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), 0, ''
  FROM fencelock_ticket t WHERE t.name IN ({names}) GROUP BY t.name
