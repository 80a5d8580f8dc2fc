-- For how long tickets are there: {ids}.
SELECT LOWER(HEX(id)), name, expiry - @now FROM fencelock_ticket FORCE INDEX (id) WHERE id IN ({ids}) AND expiry > @now;
