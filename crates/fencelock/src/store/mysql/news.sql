-- Whether it was there, whether anything changed, and how many are left; and which tickets of ours came in by that: {i}, {name},
-- {client}.
SELECT LOWER(HEX(@o{i})), @s{i}, @m{i};
SELECT LOWER(HEX(id)), number FROM fencelock_ticket WHERE name = {name} AND client = {client} AND admitted = @now;
