
-- The last thing to be made: whoever finds it finds everything. An older layout is this one by now; a newer one stays what it is.
INSERT IGNORE INTO fencelock_layout VALUES (1, 3, 0);
UPDATE fencelock_layout SET version = 3 WHERE version < 3;

-- What a user needs that uses all this and has not made it (the last two lines for mode=session only):
-- GRANT SELECT, UPDATE ON app.fencelock_layout TO 'app'@'%';
-- GRANT SELECT, INSERT, UPDATE, DELETE ON app.fencelock_line TO 'app'@'%';
-- GRANT SELECT, INSERT, UPDATE, DELETE ON app.fencelock_ticket TO 'app'@'%';
-- GRANT SELECT, INSERT, UPDATE, DELETE ON app.fencelock_register TO 'app'@'%';
-- GRANT SELECT, INSERT, UPDATE, DELETE ON app.fencelock_session TO 'app'@'%';
-- GRANT SELECT, UPDATE ON app.fencelock_token TO 'app'@'%';
