-- For how long tickets are there: {ids}, {names}. Last of its script, behind the end of the transaction.
SELECT LOWER(HEX(id)), name, expiry - @now FROM fencelock_ticket FORCE INDEX (id) WHERE id IN ({ids}) AND expiry > @now
UNION ALL
SELECT LOWER(HEX(id)), name, expiry - @now FROM fencelock_line WHERE name IN ({names}) AND id IN ({ids}) AND expiry > @now
