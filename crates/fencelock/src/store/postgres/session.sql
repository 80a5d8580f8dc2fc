-- fencelock on PostgreSQL: locks that belong to a connection (mode=session), layout 1.
--
-- The lock itself is an advisory one. A row beside it says whose it is, and what the name was before it became a key. A row
-- counts while its connection lives: that is, while somebody has the advisory lock `marker`. Nothing here needs to survive
-- a crash, since the locks do not.

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

-- Tries for locks. `what`: 0 got it, 1 not, 3 another name has the same key. `backend` must always be the same.
CREATE OR REPLACE FUNCTION fencelock.session_take(
  mark bigint, ttl bigint, names text[], longs text[], ids bytea[], keys bigint[], shareds boolean[], attempts boolean[], stays boolean[],
  owners bytea[], hosts text[], pids bigint[], identities text[], reasons text[], vals text[])
RETURNS TABLE (what integer, token bigint, other text, backend integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  now timestamptz;
  got boolean;
BEGIN
  backend := pg_backend_pid();
  IF ttl IS NOT NULL THEN
    PERFORM fencelock.session_ttl(ttl);
  END IF;
  FOR i IN 1..cardinality(names) LOOP
    what := 1;
    token := NULL;
    other := NULL;
    IF EXISTS (SELECT FROM fencelock.session s WHERE s.key = keys[i] AND s.name <> names[i]) THEN
      SELECT coalesce(s.long, s.name) INTO other FROM fencelock.session s
      WHERE s.key = keys[i] AND s.name <> names[i] AND s.marker IN (SELECT fencelock.markers()) LIMIT 1;
    END IF;
    IF other IS NOT NULL THEN
      what := 3;
    ELSE
      got := false;
      IF attempts[i] AND shareds[i] THEN
        got := pg_try_advisory_lock_shared(keys[i]);
      ELSIF attempts[i] THEN
        got := pg_try_advisory_lock(keys[i]);
      END IF;
      now := clock_timestamp();
      IF got THEN
        what := 0;
        token := nextval('fencelock.session_token');
      END IF;
      IF got OR stays[i] THEN
        INSERT INTO fencelock.session AS s VALUES (names[i], ids[i], longs[i], keys[i], mark, shareds[i], token, now,
          CASE WHEN got THEN now END, owners[i], hosts[i], pids[i], identities[i], reasons[i], vals[i])
        ON CONFLICT (name, id) DO UPDATE SET number = excluded.number, admitted = excluded.admitted WHERE excluded.number IS NOT NULL;
      END IF;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Gives locks back, and takes out their rows.
CREATE OR REPLACE FUNCTION fencelock.session_leave(names text[], ids bytea[], keys bigint[], shareds boolean[], insides boolean[])
RETURNS integer
LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..cardinality(names) LOOP
    DELETE FROM fencelock.session s WHERE s.name = names[i] AND s.id = ids[i];
    IF insides[i] AND shareds[i] THEN
      PERFORM pg_advisory_unlock_shared(keys[i]);
    ELSIF insides[i] THEN
      PERFORM pg_advisory_unlock(keys[i]);
    END IF;
  END LOOP;
  RETURN pg_backend_pid();
END $$;

-- Says something new of a ticket where `said`; makes a writer a reader where `to_shared`.
CREATE OR REPLACE FUNCTION fencelock.session_say(n text, ticket_id bytea, k bigint, to_shared boolean, said boolean,
  new_host text, new_pid bigint, new_identity text, new_reason text, new_value text)
RETURNS integer
LANGUAGE plpgsql AS $$
BEGIN
  IF to_shared THEN
    -- Beside one's own exclusive lock this always succeeds.
    PERFORM pg_advisory_lock_shared(k);
    PERFORM pg_advisory_unlock(k);
  END IF;
  UPDATE fencelock.session s SET shared = s.shared OR to_shared,
    host = CASE WHEN said THEN new_host ELSE s.host END,
    pid = CASE WHEN said THEN new_pid ELSE s.pid END,
    identity = CASE WHEN said THEN new_identity ELSE s.identity END,
    reason = CASE WHEN said THEN new_reason ELSE s.reason END,
    value = CASE WHEN said THEN new_value ELSE s.value END
  WHERE s.name = n AND s.id = ticket_id;
  RETURN pg_backend_pid();
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

-- What changes whenever something within a scope does; and with every grant, since one that came and went between two looks
-- has left no row.
CREATE OR REPLACE FUNCTION fencelock.session_mark(scopes text[], prefixes boolean[]) RETURNS TABLE (mark text)
LANGUAGE sql AS $$
  SELECT (SELECT t.last_value FROM fencelock.session_token t) || ' ' || (SELECT md5(coalesce(string_agg(s::text, ',' ORDER BY s.name, s.id), '')) FROM fencelock.session s
    WHERE s.name >= w.scope COLLATE "C" AND CASE WHEN w.prefix THEN starts_with(s.name, w.scope) ELSE s.name = w.scope END
      AND s.marker IN (SELECT fencelock.markers()))
  FROM unnest(scopes, prefixes) WITH ORDINALITY AS w (scope, prefix, i) ORDER BY w.i
$$;
