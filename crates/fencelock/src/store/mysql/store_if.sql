-- Writes a register if nobody has since {seen}: {name}, {said}, {value}, {written}; or deletes it, where {value} is NULL.
--
-- A register without a value has the floor of the layout as its version, and a new one begins above it; a deletion raises it above
-- its own. So no version of a register ever comes back, and nothing stays of one that was deleted. The row is made by a statement of its
-- own, which holds no other lock, and locked after that: so nothing here can deadlock.
INSERT IGNORE INTO fencelock_register VALUES ({name}, {said}, 0, x'', NULL);
START TRANSACTION;
SET @v = NULL, @w = NULL, @f = NULL;
SELECT version, written INTO @v, @w FROM fencelock_register WHERE name = {name} FOR UPDATE;
SELECT floor INTO @f FROM fencelock_layout WHERE one = 1;
SET @same = COALESCE(@v > 0 AND @w = {written}, 0), @delete = {value} IS NULL;
SET @may = COALESCE(@same = 0 AND IF(@v = 0, {seen} >= @f, @v = {seen}), 0);
SET @new = IF(@v = 0, IF(@delete, {seen}, @f + 1), @v + 1);
UPDATE fencelock_register SET version = @new, written = {written}, value = {value} WHERE name = {name} AND @may AND NOT @delete;
UPDATE fencelock_layout SET floor = GREATEST(floor, @v) + 1 WHERE one = 1 AND @may AND @delete AND @v > 0;
DELETE FROM fencelock_register WHERE name = {name} AND (version = 0 OR (@may AND @delete));
SELECT IF(@same, @v, IF(@may, @new, NULL));
COMMIT;
