-- fencelock on PostgreSQL: locks that belong to a connection (mode=session), layout 1.
--
-- The lock itself is an advisory one. A row beside it says whose it is, and what the name was before it became a key. A row
-- counts while its connection lives: that is, while somebody has the advisory lock `marker`. Who is gone again within some
-- milliseconds never gets one; until it is written, or the ticket gone, its client's flag is up: an advisory lock of two keys.
-- Nothing here needs to survive a crash, since the locks do not.

CREATE SEQUENCE IF NOT EXISTS fencelock.session_token;

CREATE UNLOGGED TABLE IF NOT EXISTS fencelock.session (
  name text COLLATE "C" NOT NULL,
  id bytea NOT NULL,
  long text,
  key bigint NOT NULL,
  marker bigint NOT NULL,
  shared boolean NOT NULL,
  number bigint,                                    -- once it is inside
  entered timestamptz NOT NULL,
  admitted timestamptz,
  owner bytea NOT NULL,
  host text NOT NULL,
  pid bigint NOT NULL,
  identity text NOT NULL,
  reason text,
  value text,
  PRIMARY KEY (name, id)
) WITH (fillfactor = 50);

CREATE INDEX IF NOT EXISTS session_key ON fencelock.session (key);

-- The markers of all connections that live.
CREATE OR REPLACE FUNCTION fencelock.markers() RETURNS SETOF bigint
LANGUAGE sql AS $$
  SELECT (l.classid::bigint << 32) | l.objid::bigint FROM pg_locks l
  WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;

-- Begins a connection: `marker` is its own. Takes out the rows of those that have ended.
CREATE OR REPLACE FUNCTION fencelock.session_open(marker bigint) RETURNS integer
LANGUAGE plpgsql AS $$
BEGIN
  IF NOT pg_try_advisory_lock(session_open.marker) THEN
    RAISE 'this marker is taken';
  END IF;
  DELETE FROM fencelock.session s USING (
    SELECT k.name, k.id FROM fencelock.session k WHERE k.marker NOT IN (SELECT fencelock.markers()) FOR UPDATE SKIP LOCKED
  ) k WHERE s.name = k.name AND s.id = k.id;
  RETURN pg_backend_pid();
END $$;

-- The server ends this connection when it is silent for so many milliseconds. PostgreSQL 13 does not know that yet.
CREATE OR REPLACE FUNCTION fencelock.session_ttl(ttl bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('idle_session_timeout', true) IS NOT NULL THEN
    PERFORM set_config('idle_session_timeout', ttl::text, false);
  END IF;
END $$;

-- Who is there, in the order of coming.
CREATE OR REPLACE FUNCTION fencelock.session_inspect(n text)
RETURNS TABLE (s_number bigint, s_mode integer, s_weight integer, s_capacity integer, s_owner text, s_host text,
  s_pid bigint, s_identity text, s_reason text, s_value text, s_entered bigint, s_admitted bigint, s_left bigint)
LANGUAGE sql AS $$
  SELECT s.number, CASE WHEN s.shared THEN 1 ELSE 0 END, CASE WHEN s.shared THEN 1 ELSE 1048576 END, 1048576, encode(s.owner, 'hex'),
    s.host, s.pid, s.identity, s.reason, s.value, fencelock.micros(clock_timestamp() - s.entered),
    fencelock.micros(clock_timestamp() - s.admitted), NULL::bigint
  FROM fencelock.session s WHERE s.name = n AND s.marker IN (SELECT fencelock.markers()) ORDER BY s.entered
$$;

CREATE OR REPLACE FUNCTION fencelock.session_list(prefix text, after text, most bigint)
RETURNS TABLE (name text, long text, inside bigint, waiting bigint, held bigint)
LANGUAGE sql AS $$
  SELECT s.name, min(s.long), count(s.admitted), count(*) - count(s.admitted),
    fencelock.micros(clock_timestamp() - min(coalesce(s.admitted, s.entered)))
  FROM fencelock.session s
  WHERE s.name >= prefix COLLATE "C" AND (after IS NULL OR s.name > after COLLATE "C") AND starts_with(s.name, prefix)
    AND s.marker IN (SELECT fencelock.markers())
  GROUP BY s.name ORDER BY s.name COLLATE "C" LIMIT most
$$;
