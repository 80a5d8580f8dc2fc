-- The file's layout, version 1 (`user_version`; `application_id` says whose file it is).
--
-- One table holds three kinds of rows, because it is pages that cost: a commit writes every page it touched, so three
-- tables make an enter and a leave 1.5 times as slow as one (58 against 39 microseconds; two bare updates take 30).
-- People may read it through the views below.
--
--   name = '', id = x''    the file's own row
--   name,      id = x''    the line's own row, there as long as somebody is in the line
--   name,      id          a ticket
--
-- Moments are nanoseconds of the clock that counts suspend, and mean something only during the boot that the file's row
-- names: whoever finds another boot there empties the lines first.
CREATE TABLE kept (
    name     TEXT NOT NULL,
    id       BLOB NOT NULL,
    -- A ticket.
    number   INTEGER,           -- its place in the line and its token
    weight   INTEGER,
    waiting  INTEGER,           -- 1, or NULL once it is inside
    expiry   INTEGER,
    entered  INTEGER,
    admitted INTEGER,           -- since when it is inside
    mode     INTEGER,           -- 0 exclusive, 1 shared, 2 permits
    client   TEXT,              -- the name of its client's socket
    owner    BLOB,
    host     TEXT,
    pid      INTEGER,
    identity TEXT,
    reason   TEXT,
    value    TEXT,
    held     TEXT,              -- the names that its owner holds already, separated by blanks
    -- A line.
    capacity INTEGER,
    total    INTEGER,           -- the weight of all its tickets
    inside   INTEGER,           -- the weight of the admitted ones
    tickets  INTEGER,           -- how many there are
    earliest INTEGER,           -- no ticket lapses before this
    head     BLOB,              -- the id of the first ticket, where it is known
    long     TEXT,              -- what the user called it, where the name is a hash
    -- The file.
    last     INTEGER,           -- the last number given away
    reserved INTEGER,           -- numbers up to this may be given away: it was synced to the disk before any of them was
    promised INTEGER,           -- numbers up to this are about to be reserved: synced without holding up anybody
    boot     TEXT,              -- the boot during which all this was written
    watched  INTEGER,           -- how many rows the table watcher has
    expelled INTEGER,           -- how many tickets were put out by force
    PRIMARY KEY (name, id)
) WITHOUT ROWID;

-- Only waiting tickets are in it: an enter that is admitted at once does not touch its pages.
CREATE INDEX waiting ON kept (name, number) WHERE waiting = 1;

-- Clients that want to be told of every change in some line, by datagram to their socket.
CREATE TABLE watcher (
    client TEXT NOT NULL,
    scope  TEXT NOT NULL,
    exact  INTEGER NOT NULL,    -- 1: the line of this name; 0: every line whose name begins with this
    PRIMARY KEY (client, scope, exact)
) WITHOUT ROWID;

CREATE VIEW lines AS
SELECT name, long, capacity, total, inside, tickets FROM kept WHERE id = x'' AND name <> '';

CREATE VIEW tickets AS
SELECT name, number, weight, waiting IS NULL AS inside, expiry, entered, admitted, host, pid, identity, reason, value, held
FROM kept WHERE id <> x'' ORDER BY name, number;

INSERT INTO kept (name, id, last, reserved, promised, boot, watched, expelled) VALUES ('', x'', 0, 0, 0, '', 0, 0);
