-- Lowers a ticket's weight and says something new of it: {i}, {name}, {id}, {weight}, {said}, {host}, {pid}, {identity}, {reason},
-- {value}.
SELECT MAX(id), MAX(number), MAX(weight), MAX(capacity) INTO @o{i}, @g{i}, @x, @y FROM fencelock_ticket WHERE name = {name} AND id = {id};
SET @z = LEAST(@x, COALESCE({weight}, @x));
UPDATE fencelock_ticket SET weight = @z,
  mode = CASE WHEN @z = @x THEN mode WHEN @y <> 1048576 THEN 2 WHEN @z = @y THEN 0 ELSE 1 END,
  host = IF({said}, {host}, host), pid = IF({said}, {pid}, pid), identity = IF({said}, {identity}, identity),
  reason = IF({said}, {reason}, reason), value = IF({said}, {value}, value)
  WHERE name = {name} AND number = @g{i};
SET @s{i} = @s{i} + (@o{i} IS NOT NULL);
