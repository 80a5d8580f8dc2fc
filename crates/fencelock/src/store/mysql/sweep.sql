-- Begins what a script does to a line: {i}, {name}. Moves the ticket that was alone to the others, if there is one (at the end admit.sql says
-- that it is no longer in the line's row), and takes out those that have lapsed. @s is how many changes there were, @d how many are gone.
INSERT INTO fencelock_ticket SELECT name, number, id, weight, capacity, mode, client, entered, entered, expiry, owner, held,
  host, pid, identity, reason, value FROM fencelock_line WHERE name = {name} AND expiry > @now;
DELETE FROM fencelock_ticket WHERE name = {name} AND expiry <= @now;
SET @s{i} = ROW_COUNT(), @d{i} = ROW_COUNT();
