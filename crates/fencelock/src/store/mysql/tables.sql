-- fencelock on MySQL and MariaDB: the tables of layout 3. Every statement may be run again.
--
-- A line has one row, which every script locks first; a batch locks lines in the order of their names. Tickets are only ever
-- touched behind that lock, and a ticket's key never comes back, so nothing here can deadlock. Times are microseconds of the
-- database's clock. Text is UTF-8, kept as bytes.
--
-- A ticket that finds nobody in its line is kept in the line's own row: to enter and to leave is then one statement that changes
-- one row (take.sql, drop.sql). Whoever finds it there moves it to the others first (sweep.sql).
--
-- Of a line with tickets the row keeps the sums, so that to join at its end (follow.sql), to leave it and let in the next one (pass.sql) and to
-- see whose turn it is (glance.sql) touches a few rows, however long the line is. Every other script writes them anew from the tickets
-- (admit.sql). They count only while `many` is 1 and `earliest` is to come: whoever finds it past takes out who has lapsed, and
-- reckons again.
CREATE TABLE IF NOT EXISTS fencelock_layout (
  one TINYINT NOT NULL PRIMARY KEY,
  version INT NOT NULL,
  floor BIGINT NOT NULL          -- numbers of lines that were taken out are at most this
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS fencelock_line (
  name VARBINARY(250) NOT NULL PRIMARY KEY,
  said BLOB,                     -- what the name stands for, where it is a hash
  last BIGINT NOT NULL,          -- the last number given; 0: none yet, begin above the floor
  touched BIGINT NOT NULL,       -- when it changed last
  kept TINYINT NOT NULL,         -- 1: transactions lock it, it is never taken out
  many TINYINT NOT NULL DEFAULT 1, -- 0: none of its tickets is in fencelock_ticket, and its numbers have begun
  earliest BIGINT NOT NULL DEFAULT 0, -- no ticket lapses before; 0: the sums are not known
  frontier BIGINT NOT NULL DEFAULT 0, -- every ticket up to this number is inside, the others wait
  inside BIGINT NOT NULL DEFAULT 0, -- the weight inside
  total BIGINT NOT NULL DEFAULT 0, -- the weight of all tickets
  head BIGINT NOT NULL DEFAULT 0, -- no ticket has a smaller number
  changes BIGINT NOT NULL DEFAULT 0, -- how often tickets went otherwise than from inside by their own client: who waits looks for its ticket
  -- The ticket that is alone, as long as it has not lapsed; 0: there is none.
  expiry BIGINT NOT NULL DEFAULT 0,
  number BIGINT NOT NULL DEFAULT 0,
  id BINARY(16) NOT NULL DEFAULT '',
  weight INT NOT NULL DEFAULT 0,
  capacity INT NOT NULL DEFAULT 0, -- and that of the line, if there are many
  mode TINYINT NOT NULL DEFAULT 0,
  client VARBINARY(32) NOT NULL DEFAULT '',
  entered BIGINT NOT NULL DEFAULT 0, -- and admitted
  owner BINARY(16) NOT NULL DEFAULT '',
  pid BIGINT NOT NULL DEFAULT 0,
  held BLOB,
  host BLOB,
  identity BLOB,
  reason BLOB,
  value BLOB
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS fencelock_ticket (
  name VARBINARY(250) NOT NULL,
  number BIGINT NOT NULL,
  id BINARY(16) NOT NULL,
  weight INT NOT NULL,
  capacity INT NOT NULL,
  mode TINYINT NOT NULL,         -- 0 exclusive, 1 shared, 2 permits
  client VARBINARY(32) NOT NULL,
  entered BIGINT NOT NULL,
  admitted BIGINT,
  expiry BIGINT NOT NULL,
  owner BINARY(16) NOT NULL,
  held BLOB NOT NULL,            -- what the owner held already, separated by spaces
  host BLOB NOT NULL,
  pid BIGINT NOT NULL,
  identity BLOB NOT NULL,
  reason BLOB,
  value BLOB,
  PRIMARY KEY (name, number),
  KEY (id)
) ENGINE = InnoDB;

-- Registers: see store_if.sql. A row with version 0 is about to be one, or was left by somebody who gave up: there is no value.
CREATE TABLE IF NOT EXISTS fencelock_register (
  name VARBINARY(250) NOT NULL PRIMARY KEY,
  said BLOB,                     -- what the name stands for, where it is a hash
  version BIGINT NOT NULL,
  written VARBINARY(16) NOT NULL, -- the id of the write that it came by
  value LONGBLOB
) ENGINE = InnoDB;

-- From layout 1: its lines have no room for a ticket yet.
SET @fencelock = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
  AND table_name = 'fencelock_line' AND column_name = 'many') > 0, 'DO 0', 'ALTER TABLE fencelock_line
  ADD many TINYINT NOT NULL DEFAULT 1, ADD expiry BIGINT NOT NULL DEFAULT 0, ADD number BIGINT NOT NULL DEFAULT 0,
  ADD id BINARY(16) NOT NULL DEFAULT '''', ADD weight INT NOT NULL DEFAULT 0, ADD capacity INT NOT NULL DEFAULT 0,
  ADD mode TINYINT NOT NULL DEFAULT 0, ADD client VARBINARY(32) NOT NULL DEFAULT '''', ADD entered BIGINT NOT NULL DEFAULT 0,
  ADD owner BINARY(16) NOT NULL DEFAULT '''', ADD pid BIGINT NOT NULL DEFAULT 0, ADD held BLOB, ADD host BLOB,
  ADD identity BLOB, ADD reason BLOB, ADD value BLOB');
PREPARE fencelock FROM @fencelock;
EXECUTE fencelock;
DEALLOCATE PREPARE fencelock;

-- From layout 2: they have no sums yet.
SET @fencelock = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
  AND table_name = 'fencelock_line' AND column_name = 'earliest') > 0, 'DO 0', 'ALTER TABLE fencelock_line
  ADD earliest BIGINT NOT NULL DEFAULT 0, ADD frontier BIGINT NOT NULL DEFAULT 0, ADD inside BIGINT NOT NULL DEFAULT 0,
  ADD total BIGINT NOT NULL DEFAULT 0, ADD head BIGINT NOT NULL DEFAULT 0, ADD changes BIGINT NOT NULL DEFAULT 0');
PREPARE fencelock FROM @fencelock;
EXECUTE fencelock;
DEALLOCATE PREPARE fencelock;

