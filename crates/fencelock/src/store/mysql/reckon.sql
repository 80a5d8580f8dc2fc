-- Reckons when somebody in these lines may lapse, behind their locks: {names}. Renewals have put it off. The tickets are read without a lock.
UPDATE fencelock_line l FORCE INDEX (PRIMARY) SET l.earliest =
  COALESCE((SELECT MIN(t.expiry) FROM fencelock_ticket t WHERE t.name = l.name), 9223372036854775807)
  WHERE l.name IN ({names}) AND l.many = 1 AND l.earliest > 0;
