-- fencelock on MySQL and MariaDB: locks that belong to a connection (mode=session), layout 1.
--
-- The lock itself is GET_LOCK's. A row beside it says whose it is, and what the name was before it became a key. It counts while
-- its connection lives: that is, while somebody has the lock named by `marker`. Nothing here needs to survive a restart, since
-- the locks do not; so it is kept in memory.
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

CREATE TABLE IF NOT EXISTS fencelock_token (
  one TINYINT NOT NULL PRIMARY KEY,
  last BIGINT NOT NULL
) ENGINE = InnoDB;

INSERT IGNORE INTO fencelock_token VALUES (1, 0);
