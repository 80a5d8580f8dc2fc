-- fencelock on PostgreSQL: the tables of layout 1. Every statement may be run again; the whole file is one transaction.
--
-- A line has one row, which is locked before anything of it is read or changed, and which keeps its sums: a statement that
-- summed the tickets would see a picture older than its own lock. Batches lock lines in the order of their names. Nobody waits
-- for any other lock, so there is nothing to deadlock on.
--
-- No index but the two below: rows that change in unindexed columns only are changed in place.

SELECT pg_advisory_xact_lock(7308899, 1);

CREATE SCHEMA IF NOT EXISTS fencelock;

-- One row. Numbers of lines that were taken out are at most `floor`: a line that is made anew starts above it.
CREATE TABLE IF NOT EXISTS fencelock.layout (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  version integer NOT NULL,
  floor bigint NOT NULL
);

CREATE TABLE IF NOT EXISTS fencelock.line (
  name text COLLATE "C" PRIMARY KEY,
  long text,                                        -- what the name stands for, where it is a hash
  last bigint NOT NULL,                             -- the last number given; 0: none yet, begin above the floor
  frontier bigint NOT NULL DEFAULT 0,               -- every ticket up to this number is inside, the others wait
  inside bigint NOT NULL DEFAULT 0,                 -- the weight inside
  total bigint NOT NULL DEFAULT 0,                  -- the weight of all tickets
  earliest timestamptz NOT NULL DEFAULT 'infinity', -- no ticket lapses before
  touched timestamptz NOT NULL                      -- when it changed last
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS fencelock.ticket (
  name text COLLATE "C" NOT NULL,
  id bytea NOT NULL,
  number bigint NOT NULL,
  weight integer NOT NULL,
  capacity integer NOT NULL,
  mode smallint NOT NULL,                           -- 0 exclusive, 1 shared, 2 permits
  client text NOT NULL,                             -- whom to tell, on the channel fencelock_<client>; empty: nobody
  entered timestamptz NOT NULL,
  admitted timestamptz,
  expiry timestamptz NOT NULL,
  owner bytea NOT NULL,
  held text NOT NULL,                               -- what the owner held already, separated by spaces
  host text NOT NULL,
  pid bigint NOT NULL,
  identity text NOT NULL,
  reason text,
  value text,
  PRIMARY KEY (id, name)
) WITH (fillfactor = 70);

CREATE UNIQUE INDEX IF NOT EXISTS ticket_order ON fencelock.ticket (name, number);

-- Who wants to be told of changes.
CREATE TABLE IF NOT EXISTS fencelock.watcher (
  scope text COLLATE "C" NOT NULL,
  prefix boolean NOT NULL,
  client text NOT NULL,
  expiry timestamptz NOT NULL,
  PRIMARY KEY (client, scope, prefix)
);

-- What a resource in this database has accepted, per lock and label of the store that the lock is in: see the module `fence`.
CREATE TABLE IF NOT EXISTS fencelock.mark (
  name text COLLATE "C" NOT NULL,
  label text COLLATE "C" NOT NULL,
  exclusive_mark bigint NOT NULL,
  shared_mark bigint NOT NULL,
  PRIMARY KEY (name, label)
) WITH (fillfactor = 50);

-- Registers: see registers.sql.
CREATE TABLE IF NOT EXISTS fencelock.register (
  name text COLLATE "C" PRIMARY KEY,
  long text,                                        -- what the name stands for, where it is a hash
  version bigint NOT NULL,
  write bytea NOT NULL,                             -- the id of the write that it came by
  value bytea NOT NULL
) WITH (fillfactor = 70);
