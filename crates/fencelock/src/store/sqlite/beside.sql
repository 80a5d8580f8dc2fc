-- What the file keeps beside its lines, made when it is first needed. The layout stays version 1: who does not know these
-- tables has no use for them.

-- The buckets of limiters: see limit/bucket.rs. Moments are microseconds of the clock that counts suspend. After a boot that
-- clock begins anew, which can only make a bucket recover later than it might.
CREATE TABLE IF NOT EXISTS bucket (
    name  TEXT PRIMARY KEY,
    level INTEGER NOT NULL,
    cost  INTEGER NOT NULL,
    at    INTEGER NOT NULL,
    fresh INTEGER NOT NULL      -- from this moment on it is as good as none
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS bucket_fresh ON bucket (fresh);

-- Registers. The row '' has the number of the last deletion as its version.
CREATE TABLE IF NOT EXISTS register (
    name    TEXT PRIMARY KEY,
    version INTEGER NOT NULL,   -- one of the file's numbers, as a token is
    write   BLOB NOT NULL,      -- the id of the write that it came by
    value   BLOB,
    long    TEXT                -- what the user called it, where the name is a hash
);

INSERT OR IGNORE INTO register (name, version, write) VALUES ('', 0, x'');
