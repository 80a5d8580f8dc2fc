-- What became of tickets, without a lock: {ids}, {names}. Then for how long nobody in their lines can lapse.
SELECT LOWER(HEX(id)), name, number, admitted, expiry - @now FROM fencelock_ticket WHERE id IN ({ids});
SELECT name, MIN(expiry) - @now FROM fencelock_ticket WHERE name IN ({names}) GROUP BY name;
