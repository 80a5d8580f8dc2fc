-- Begins the numbers of a line that is locked and has given none, above the floor: {name}. Nobody was ever in it.
UPDATE fencelock_line SET last = @floor, touched = @now, many = 0 WHERE name = {name} AND last = 0;
