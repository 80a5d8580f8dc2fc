-- fencelock on MySQL and MariaDB: locks that belong to a connection (mode=session).
--
-- The lock itself is GET_LOCK's. A row beside it says whose it is, and what the name was before it became a key. It counts while
-- its connection lives: that is, while somebody has the lock named by `marker`. Who is gone again within some milliseconds never
-- gets one; until it is written, or the ticket gone, its client has the lock `marker` with ":behind" after it. Nothing here needs
-- to survive a restart, since the locks do not; so it is kept in memory.
CREATE TABLE IF NOT EXISTS fencelock_session (
  name VARBINARY(250) NOT NULL,
  id BINARY(16) NOT NULL,
  said VARBINARY(600),
  marker VARBINARY(40) NOT NULL,
  weight INT NOT NULL,
  capacity INT NOT NULL,
  number BIGINT,                 -- once it is inside
  entered BIGINT NOT NULL,
  admitted BIGINT,
  owner BINARY(16) NOT NULL,
  host VARBINARY(250) NOT NULL,
  pid BIGINT NOT NULL,
  identity VARBINARY(250) NOT NULL,
  reason VARBINARY(500),
  value VARBINARY(500),
  PRIMARY KEY (name, id) USING BTREE
) ENGINE = MEMORY;

CREATE TABLE IF NOT EXISTS fencelock_client (
  marker VARBINARY(40) NOT NULL PRIMARY KEY,
  grants BIGINT NOT NULL         -- how many locks it was given; told whenever it is no longer behind
) ENGINE = MEMORY;

-- The numbers of locks: a row for MySQL, a sequence for MariaDB, which begins above whatever the row has given.
CREATE TABLE IF NOT EXISTS fencelock_token (
  one TINYINT NOT NULL PRIMARY KEY,
  last BIGINT NOT NULL
) ENGINE = InnoDB;

INSERT IGNORE INTO fencelock_token VALUES (1, 0);

SET @fencelock = IF(VERSION() LIKE '%MariaDB%', 'CREATE SEQUENCE IF NOT EXISTS fencelock_number CACHE 1000', 'DO 0');
PREPARE fencelock FROM @fencelock;
EXECUTE fencelock;
SET @fencelock = (SELECT IF(VERSION() LIKE '%MariaDB%' AND last > 0,
  CONCAT('DO SETVAL(fencelock_number, ', last + 1000000, ')'), 'DO 0') FROM fencelock_token WHERE one = 1);
PREPARE fencelock FROM @fencelock;
EXECUTE fencelock;
DEALLOCATE PREPARE fencelock;
