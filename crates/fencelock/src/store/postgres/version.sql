
-- An older layout is this one by now; a newer one stays what it is.
INSERT INTO fencelock.layout AS l (version, floor) VALUES (1, 0)
  ON CONFLICT (one) DO UPDATE SET version = excluded.version WHERE l.version < excluded.version;

-- What a role needs that uses all this and has not made it (the last line for mode=session only):
-- GRANT USAGE ON SCHEMA fencelock TO app;
-- GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA fencelock TO app;
-- GRANT SELECT, USAGE ON ALL SEQUENCES IN SCHEMA fencelock TO app;
