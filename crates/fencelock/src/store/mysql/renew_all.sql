-- Renews tickets for the same lease: {ids}, {names}, {places}, {lease}. By their index: a look through the table would wait for
-- others.
UPDATE fencelock_ticket FORCE INDEX (id) SET expiry = GREATEST(expiry, @now + {lease})
  WHERE id IN ({ids}) AND (id, name) IN ({places}) AND expiry > @now;
UPDATE fencelock_line FORCE INDEX (PRIMARY) SET expiry = GREATEST(expiry, @now + {lease})
  WHERE name IN ({names}) AND (id, name) IN ({places}) AND expiry > @now;
