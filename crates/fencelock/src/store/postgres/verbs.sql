-- fencelock on PostgreSQL: the verbs of layout 1. One call is one transaction and one round trip.
--
-- `me` is the calling client: its own news come back in the answer, everybody else's by NOTIFY. News are lines of text:
-- `+<id> <number>` came in, `-<id>` is gone, `~<name>[ <long name>]` has changed. Places of a batch come sorted by name.
-- Durations are microseconds. Time is clock_timestamp(), read once the line is locked: now() stands still.

-- Locks a line, and makes it if it is missing and `make` says so.
CREATE OR REPLACE FUNCTION fencelock.take(n text, said text, make boolean) RETURNS fencelock.line
LANGUAGE plpgsql AS $$
DECLARE
  l fencelock.line;
BEGIN
  -- With an older picture than its lock the rest would be wrong.
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE 'fencelock needs the isolation level read committed' USING ERRCODE = '25001';
  END IF;
  LOOP
    SELECT * INTO l FROM fencelock.line WHERE name = n FOR NO KEY UPDATE;
    IF FOUND AND (l.last > 0 OR NOT make) OR NOT FOUND AND NOT make THEN
      RETURN l;
    END IF;
    IF NOT FOUND THEN
      INSERT INTO fencelock.line (name, long, last, touched) VALUES (n, said, 0, clock_timestamp()) ON CONFLICT DO NOTHING;
    END IF;
    IF FOUND THEN
      -- Only now: whoever took the line out before us has committed its floor.
      UPDATE fencelock.line SET last = (SELECT floor FROM fencelock.layout) WHERE name = n RETURNING * INTO l;
      RETURN l;
    END IF;
  END LOOP;
END $$;

-- Tells one client something; says it back if that client is the caller.
CREATE OR REPLACE FUNCTION fencelock.tell(me text, client text, news text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
  IF client = me THEN
    RETURN news || E'\n';
  END IF;
  IF client <> '' THEN
    PERFORM pg_notify('fencelock_' || client, news);
  END IF;
  RETURN '';
END $$;

-- Tells the other clients that watch this line. Mostly there are none, which is found out first; and plans of this language are
-- kept, those of plain SQL functions are made again for each call.
CREATE OR REPLACE FUNCTION fencelock.changed(me text, n text, said text, now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM fencelock.watcher) THEN
    PERFORM pg_notify('fencelock_' || w.client, '~' || n || coalesce(' ' || said, ''))
    FROM fencelock.watcher w
    WHERE w.client <> me AND w.expiry > now AND CASE WHEN w.prefix THEN starts_with(n, w.scope) ELSE w.scope = n END;
  END IF;
END $$;

-- Lets in whoever fits by now. Writes the tickets, not the line.
CREATE OR REPLACE FUNCTION fencelock.admit(me text, now timestamptz, INOUT l fencelock.line, OUT news text)
LANGUAGE plpgsql AS $$
DECLARE
  t record;
BEGIN
  news := '';
  IF l.inside = l.total THEN
    RETURN;
  END IF;
  FOR t IN
    SELECT k.id, k.number, k.weight, k.capacity, k.client FROM fencelock.ticket k
    WHERE k.name = l.name AND k.number > l.frontier ORDER BY k.number
  LOOP
    EXIT WHEN l.inside + t.weight > t.capacity;
    UPDATE fencelock.ticket SET admitted = now WHERE id = t.id AND name = l.name;
    l.inside := l.inside + t.weight;
    l.frontier := t.number;
    news := news || fencelock.tell(me, t.client, '+' || encode(t.id, 'hex') || ' ' || t.number);
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION fencelock.put(l fencelock.line) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  UPDATE fencelock.line SET last = l.last, frontier = l.frontier, inside = l.inside, total = l.total,
    earliest = l.earliest, touched = l.touched WHERE name = l.name;
END $$;

-- Takes out every ticket whose lease has ended, and lets in whoever fits then.
CREATE OR REPLACE FUNCTION fencelock.sweep(me text, now timestamptz, INOUT l fencelock.line, OUT news text)
LANGUAGE plpgsql AS $$
DECLARE
  r record;
  t record;
  more text;
  found_any boolean := false;
BEGIN
  news := '';
  IF l.earliest > now THEN
    RETURN;
  END IF;
  FOR t IN
    DELETE FROM fencelock.ticket k WHERE k.name = l.name AND k.expiry <= now RETURNING k.id, k.weight, k.admitted, k.client
  LOOP
    found_any := true;
    l.total := l.total - t.weight;
    IF t.admitted IS NOT NULL THEN
      l.inside := l.inside - t.weight;
    END IF;
    news := news || fencelock.tell(me, t.client, '-' || encode(t.id, 'hex'));
  END LOOP;
  SELECT coalesce(min(k.expiry), 'infinity') INTO l.earliest FROM fencelock.ticket k WHERE k.name = l.name;
  IF found_any THEN
    l.touched := now;
    r := fencelock.admit(me, now, l);
    l := r.l;
    more := r.news;
    news := news || more || '~' || l.name || coalesce(' ' || l.long, '') || E'\n';
    PERFORM fencelock.changed(me, l.name, l.long, now);
  END IF;
  PERFORM fencelock.put(l);
END $$;

-- What follows when a ticket was taken out: lets in whoever fits now. Writes the line.
CREATE OR REPLACE FUNCTION fencelock.removed(me text, now timestamptz, w integer, was_inside boolean, INOUT l fencelock.line, OUT news text)
LANGUAGE plpgsql AS $$
DECLARE
  r record;
BEGIN
  news := '';
  l.total := l.total - w;
  IF was_inside THEN
    l.inside := l.inside - w;
  END IF;
  IF l.inside <> l.total THEN
    r := fencelock.admit(me, now, l);
    l := r.l;
    news := r.news;
  END IF;
  IF l.total = 0 THEN
    l.earliest := 'infinity';
  END IF;
  l.touched := now;
  PERFORM fencelock.put(l);
  PERFORM fencelock.changed(me, l.name, l.long, now);
END $$;

CREATE OR REPLACE FUNCTION fencelock.micros(d interval) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT (extract(epoch FROM d) * 1000000)::bigint $$;

-- A ticket as others see it.
CREATE OR REPLACE FUNCTION fencelock.seen(t fencelock.ticket, now timestamptz,
  OUT s_number bigint, OUT s_mode integer, OUT s_weight integer, OUT s_capacity integer, OUT s_owner text, OUT s_host text,
  OUT s_pid bigint, OUT s_identity text, OUT s_reason text, OUT s_value text, OUT s_entered bigint, OUT s_admitted bigint, OUT s_left bigint)
LANGUAGE plpgsql AS $$
BEGIN
  s_number := t.number; s_mode := t.mode; s_weight := t.weight; s_capacity := t.capacity;
  s_owner := encode(t.owner, 'hex'); s_host := t.host; s_pid := t.pid; s_identity := t.identity; s_reason := t.reason;
  s_value := t.value;
  s_entered := fencelock.micros(now - t.entered);
  s_admitted := fencelock.micros(now - t.admitted);
  s_left := fencelock.micros(t.expiry - now);
END $$;

-- Joins lines, all or none. `what`: 0 admitted, 1 queued, 2 full, 3 another capacity (`token` says which).
CREATE OR REPLACE FUNCTION fencelock.enter(
  me text, names text[], longs text[], ids bytea[], modes integer[], weights integer[], capacities integer[], leases bigint[],
  queues boolean[], owners bytea[], helds text[], hosts text[], pids bigint[], identities text[], reasons text[], vals text[])
RETURNS TABLE (what integer, token bigint, lease bigint, made boolean, news text,
  s_number bigint, s_mode integer, s_weight integer, s_capacity integer, s_owner text, s_host text,
  s_pid bigint, s_identity text, s_reason text, s_value text, s_entered bigint, s_admitted bigint, s_left bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  r record;
  n integer := cardinality(names);
  now timestamptz;
  l fencelock.line;
  ls fencelock.line[];
  heads fencelock.ticket[];
  head fencelock.ticket;
  mine fencelock.ticket;
  full_at boolean[] := '{}';
  wrong bigint[] := '{}';
  known boolean[] := '{}';
  refused boolean := false;
  told text := '';
  more text;
  until timestamptz;
  comes_in boolean;
BEGIN
  FOR i IN 1..n LOOP
    ls[i] := fencelock.take(names[i], longs[i], true);
  END LOOP;
  now := clock_timestamp();
  FOR i IN 1..n LOOP
    l := ls[i];
    IF l.earliest <= now THEN
      r := fencelock.sweep(me, now, l);
      l := r.l;
      more := r.news;
      told := told || more;
      ls[i] := l;
    END IF;
    full_at[i] := false;
    known[i] := false;
    wrong[i] := 0;
    IF l.total > 0 THEN
      known[i] := EXISTS (SELECT FROM fencelock.ticket k WHERE k.id = ids[i] AND k.name = names[i]);
      SELECT * INTO head FROM fencelock.ticket k WHERE k.name = names[i] ORDER BY k.number LIMIT 1;
      heads[i] := head;
      IF NOT known[i] THEN
        IF head.capacity <> capacities[i] THEN
          wrong[i] := head.capacity;
          refused := true;
        ELSIF NOT queues[i] AND l.total + weights[i] > capacities[i] THEN
          full_at[i] := true;
          refused := true;
        END IF;
      END IF;
    END IF;
  END LOOP;
  FOR i IN 1..n LOOP
    what := 2; token := NULL; lease := NULL; s_number := NULL;
    made := (ls[i]).frontier = 0 AND (ls[i]).total = 0;
    news := NULL;
    IF refused THEN
      IF wrong[i] > 0 THEN
        what := 3;
        token := wrong[i];
      END IF;
    ELSE
      l := ls[i];
      IF known[i] THEN
        SELECT * INTO mine FROM fencelock.ticket k WHERE k.id = ids[i] AND k.name = names[i];
        comes_in := mine.admitted IS NOT NULL;
      ELSE
        comes_in := l.inside = l.total AND l.inside + weights[i] <= capacities[i];
      END IF;
      until := now + CASE WHEN comes_in THEN leases[i] ELSE least(leases[i], 30000000) END * interval '1 microsecond';
      IF known[i] THEN
        until := greatest(until, mine.expiry);
        token := mine.number;
        UPDATE fencelock.ticket k SET expiry = until, client = me WHERE k.id = ids[i] AND k.name = names[i];
      ELSE
        token := l.last + 1;
        INSERT INTO fencelock.ticket VALUES (names[i], ids[i], token, weights[i], capacities[i], modes[i], me, now,
          CASE WHEN comes_in THEN now END, until, owners[i], helds[i], hosts[i], pids[i], identities[i], reasons[i], vals[i]);
        UPDATE fencelock.line k SET last = token, touched = now, total = l.total + weights[i],
          inside = CASE WHEN comes_in THEN l.inside + weights[i] ELSE l.inside END,
          frontier = CASE WHEN comes_in THEN token ELSE l.frontier END,
          earliest = CASE WHEN l.total = 0 THEN until ELSE least(l.earliest, until) END
        WHERE k.name = names[i];
        PERFORM fencelock.changed(me, l.name, l.long, now);
      END IF;
      what := CASE WHEN comes_in THEN 0 ELSE 1 END;
      lease := fencelock.micros(until - now);
    END IF;
    IF (what = 1 OR (what = 2 AND full_at[i])) AND (heads[i]).name IS NOT NULL THEN
      SELECT * INTO s_number, s_mode, s_weight, s_capacity, s_owner, s_host, s_pid, s_identity, s_reason, s_value, s_entered, s_admitted, s_left
      FROM fencelock.seen(heads[i], now);
    END IF;
    IF i = n THEN
      news := told;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Takes tickets out of their lines.
CREATE OR REPLACE FUNCTION fencelock.leave(me text, names text[], ids bytea[])
RETURNS TABLE (there boolean, news text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  r record;
  now timestamptz;
  l fencelock.line;
  w integer;
  was_inside boolean;
  more text;
BEGIN
  FOR i IN 1..cardinality(names) LOOP
    there := false;
    news := '';
    l := fencelock.take(names[i], NULL, false);
    IF l.name IS NOT NULL THEN
      now := clock_timestamp();
      IF l.earliest <= now THEN
        r := fencelock.sweep(me, now, l);
        l := r.l;
        news := r.news;
      END IF;
      DELETE FROM fencelock.ticket k WHERE k.id = ids[i] AND k.name = names[i]
      RETURNING k.weight, k.admitted IS NOT NULL INTO w, was_inside;
      IF FOUND THEN
        there := true;
        r := fencelock.removed(me, now, w, was_inside, l);
        more := r.news;
        news := news || more;
      END IF;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Renews. `lease` is NULL where the ticket is gone. The line is locked like everywhere else, and not written.
CREATE OR REPLACE FUNCTION fencelock.renew(names text[], ids bytea[], leases bigint[], at_leasts bigint[])
RETURNS TABLE (lease bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  now timestamptz;
  l fencelock.line;
BEGIN
  FOR i IN 1..cardinality(names) LOOP
    lease := NULL;
    l := fencelock.take(names[i], NULL, false);
    IF l.name IS NOT NULL THEN
      now := clock_timestamp();
      UPDATE fencelock.ticket k SET expiry = greatest(k.expiry, now + leases[i] * interval '1 microsecond')
      WHERE k.id = ids[i] AND k.name = names[i] AND k.expiry > now
      RETURNING fencelock.micros(k.expiry - now) INTO lease;
      IF FOUND AND at_leasts[i] > l.last THEN
        UPDATE fencelock.line k SET last = at_leasts[i] WHERE k.name = names[i];
      END IF;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- What has become of tickets: 0 admitted, 1 waiting, 2 gone; and for how long nobody in the line can lapse. Locks only
-- lines in which somebody may have lapsed.
CREATE OR REPLACE FUNCTION fencelock.look(me text, names text[], ids bytea[])
RETURNS TABLE (what integer, token bigint, rest bigint, news text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  r record;
  now timestamptz;
  l fencelock.line;
  t fencelock.ticket;
BEGIN
  FOR i IN 1..cardinality(names) LOOP
    what := 2; token := NULL; rest := NULL; news := '';
    now := clock_timestamp();
    SELECT * INTO l FROM fencelock.line k WHERE k.name = names[i];
    IF FOUND AND l.earliest <= now THEN
      l := fencelock.take(names[i], NULL, false);
      now := clock_timestamp();
      IF l.name IS NOT NULL AND l.earliest <= now THEN
        r := fencelock.sweep(me, now, l);
        l := r.l;
        news := r.news;
      END IF;
    END IF;
    SELECT * INTO t FROM fencelock.ticket k WHERE k.id = ids[i] AND k.name = names[i];
    IF FOUND AND t.expiry > now THEN
      what := CASE WHEN t.admitted IS NULL THEN 1 ELSE 0 END;
      token := t.number;
      rest := CASE WHEN l.earliest < 'infinity' THEN fencelock.micros(l.earliest - now) END;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Lowers a ticket's weight, and says something new of it where `said`.
CREATE OR REPLACE FUNCTION fencelock.change(me text, n text, ticket_id bytea, new_weight integer, said boolean,
  new_host text, new_pid bigint, new_identity text, new_reason text, new_value text)
RETURNS TABLE (there boolean, news text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  r record;
  now timestamptz;
  l fencelock.line;
  t fencelock.ticket;
  less integer;
  more text;
BEGIN
  there := false;
  news := '';
  l := fencelock.take(n, NULL, false);
  IF l.name IS NOT NULL THEN
    now := clock_timestamp();
    r := fencelock.sweep(me, now, l);
    l := r.l;
    news := r.news;
    SELECT * INTO t FROM fencelock.ticket k WHERE k.id = ticket_id AND k.name = n;
    IF FOUND THEN
      there := true;
      less := greatest(t.weight - coalesce(new_weight, t.weight), 0);
      UPDATE fencelock.ticket k SET weight = t.weight - less,
        mode = CASE WHEN less = 0 THEN t.mode WHEN t.capacity <> 1048576 THEN 2 WHEN new_weight = t.capacity THEN 0 ELSE 1 END,
        host = CASE WHEN said THEN new_host ELSE t.host END,
        pid = CASE WHEN said THEN new_pid ELSE t.pid END,
        identity = CASE WHEN said THEN new_identity ELSE t.identity END,
        reason = CASE WHEN said THEN new_reason ELSE t.reason END,
        value = CASE WHEN said THEN new_value ELSE t.value END
      WHERE k.id = ticket_id AND k.name = n;
      l.total := l.total - less;
      IF t.admitted IS NOT NULL THEN
        l.inside := l.inside - less;
      END IF;
      r := fencelock.admit(me, now, l);
      l := r.l;
      more := r.news;
      news := news || more;
      l.touched := now;
      PERFORM fencelock.put(l);
      PERFORM fencelock.changed(me, l.name, l.long, now);
    END IF;
  END IF;
  RETURN NEXT;
END $$;

-- Replaces a ticket that is alone by one with all of the capacity: 0 admitted, 1 held, 2 gone.
CREATE OR REPLACE FUNCTION fencelock.upgrade(me text, n text, old_id bytea, new_id bytea)
RETURNS TABLE (what integer, token bigint, news text,
  s_number bigint, s_mode integer, s_weight integer, s_capacity integer, s_owner text, s_host text,
  s_pid bigint, s_identity text, s_reason text, s_value text, s_entered bigint, s_admitted bigint, s_left bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  r record;
  now timestamptz;
  l fencelock.line;
  t fencelock.ticket;
  other fencelock.ticket;
BEGIN
  what := 2;
  news := '';
  l := fencelock.take(n, NULL, false);
  IF l.name IS NOT NULL THEN
    now := clock_timestamp();
    r := fencelock.sweep(me, now, l);
    l := r.l;
    news := r.news;
    SELECT * INTO t FROM fencelock.ticket k WHERE k.id = new_id AND k.name = n;
    IF FOUND THEN
      what := 0;
      token := t.number;
    ELSE
      SELECT * INTO t FROM fencelock.ticket k WHERE k.id = old_id AND k.name = n;
      IF FOUND THEN
        SELECT * INTO other FROM fencelock.ticket k WHERE k.name = n AND k.id <> old_id ORDER BY k.number LIMIT 1;
        IF FOUND THEN
          what := 1;
          SELECT * INTO s_number, s_mode, s_weight, s_capacity, s_owner, s_host, s_pid, s_identity, s_reason, s_value, s_entered,
            s_admitted, s_left FROM fencelock.seen(other, now);
        ELSE
          what := 0;
          token := l.last + 1;
          UPDATE fencelock.ticket k SET id = new_id, number = token, weight = k.capacity, mode = 0, admitted = now
          WHERE k.id = old_id AND k.name = n;
          l.last := token; l.frontier := token; l.inside := t.capacity; l.total := t.capacity; l.touched := now;
          PERFORM fencelock.put(l);
          PERFORM fencelock.changed(me, l.name, l.long, now);
        END IF;
      END IF;
    END IF;
  END IF;
  RETURN NEXT;
END $$;

-- Puts out the ticket with this number, and tells whoever it belongs to.
CREATE OR REPLACE FUNCTION fencelock.expel(me text, n text, which bigint)
RETURNS TABLE (there boolean, news text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  r record;
  now timestamptz;
  l fencelock.line;
  t fencelock.ticket;
  more text;
BEGIN
  there := false;
  news := '';
  l := fencelock.take(n, NULL, false);
  IF l.name IS NOT NULL THEN
    now := clock_timestamp();
    r := fencelock.sweep(me, now, l);
    l := r.l;
    news := r.news;
    DELETE FROM fencelock.ticket k WHERE k.name = n AND k.number = which RETURNING k.* INTO t;
    IF FOUND THEN
      there := true;
      r := fencelock.removed(me, now, t.weight, t.admitted IS NOT NULL, l);
      l := r.l;
      more := r.news;
      news := news || more || fencelock.tell(me, t.client, '-' || encode(t.id, 'hex'));
    END IF;
  END IF;
  RETURN NEXT;
END $$;

-- Every ticket of a line, in order.
CREATE OR REPLACE FUNCTION fencelock.inspect(me text, n text)
RETURNS TABLE (s_number bigint, s_mode integer, s_weight integer, s_capacity integer, s_owner text, s_host text,
  s_pid bigint, s_identity text, s_reason text, s_value text, s_entered bigint, s_admitted bigint, s_left bigint, news text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  now timestamptz := clock_timestamp();
  l fencelock.line;
  told text := '';
BEGIN
  SELECT * INTO l FROM fencelock.line k WHERE k.name = n;
  IF FOUND AND l.earliest <= now THEN
    l := fencelock.take(n, NULL, false);
    now := clock_timestamp();
    IF l.name IS NOT NULL THEN
      SELECT a.news INTO told FROM fencelock.sweep(me, now, l) a;
    END IF;
  END IF;
  RETURN QUERY SELECT s.*, told FROM fencelock.ticket k, fencelock.seen(k, now) s
    WHERE k.name = n AND k.expiry > now ORDER BY k.number;
END $$;

-- Lines with somebody in them whose names begin with `prefix`, after `after` (NULL: from the start).
CREATE OR REPLACE FUNCTION fencelock.list(me text, prefix text, after text, most bigint)
RETURNS TABLE (name text, long text, inside bigint, waiting bigint, held bigint, news text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  r record;
  now timestamptz;
  l fencelock.line;
  given bigint := 0;
BEGIN
  FOR l IN
    SELECT * FROM fencelock.line k
    WHERE k.name >= prefix COLLATE "C" AND (after IS NULL OR k.name > after COLLATE "C") AND k.total > 0
    ORDER BY k.name COLLATE "C"
  LOOP
    EXIT WHEN given >= most OR NOT starts_with(l.name, prefix);
    now := clock_timestamp();
    news := '';
    IF l.earliest <= now THEN
      l := fencelock.take(l.name, NULL, false);
      CONTINUE WHEN l.name IS NULL;
      now := clock_timestamp();
      r := fencelock.sweep(me, now, l);
      l := r.l;
      news := r.news;
    END IF;
    name := l.name;
    long := l.long;
    SELECT count(k.admitted), count(*) - count(k.admitted), fencelock.micros(now - min(coalesce(k.admitted, k.entered)))
    INTO inside, waiting, held FROM fencelock.ticket k WHERE k.name = l.name AND k.expiry > now;
    IF inside + waiting > 0 THEN
      given := given + 1;
      RETURN NEXT;
    END IF;
  END LOOP;
END $$;

-- From now on this client is told of changes within the scope; again before `lease` is over to go on.
CREATE OR REPLACE FUNCTION fencelock.watch(me text, scopes text[], prefixes boolean[], lease bigint) RETURNS void
LANGUAGE sql AS $$
  INSERT INTO fencelock.watcher (scope, prefix, client, expiry)
  SELECT s, p, me, clock_timestamp() + lease * interval '1 microsecond' FROM unnest(scopes, prefixes) AS w (s, p)
  ORDER BY 1, 2
  ON CONFLICT (client, scope, prefix) DO UPDATE SET expiry = excluded.expiry
$$;

CREATE OR REPLACE FUNCTION fencelock.unwatch(me text, scopes text[], prefixes boolean[]) RETURNS void
LANGUAGE sql AS $$
  DELETE FROM fencelock.watcher w USING unnest(scopes, prefixes) AS u (s, p)
  WHERE w.client = me AND w.scope = u.s AND w.prefix = u.p
$$;

-- What a client that is not told compares: it changes whenever something within the scope does.
CREATE OR REPLACE FUNCTION fencelock.mark(scopes text[], prefixes boolean[]) RETURNS TABLE (mark text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  FOR i IN 1..cardinality(scopes) LOOP
    SELECT count(*) || ' ' || coalesce(max(k.touched)::text, '') INTO mark FROM fencelock.line k
    WHERE k.name >= scopes[i] COLLATE "C"
      AND CASE WHEN prefixes[i] THEN k.name < (scopes[i] || '~~') COLLATE "C" ELSE k.name = scopes[i] END;
    RETURN NEXT;
  END LOOP;
END $$;

-- Looks through up to `most` lines after `after`: takes out lapsed tickets, and lines that nobody has used for `idle`. Their
-- numbers go on above the floor, which is raised first. One at a time, and it waits for nobody.
CREATE OR REPLACE FUNCTION fencelock.reap(me text, after text, most bigint, idle bigint)
RETURNS TABLE (upto text, reaped bigint, news text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  r record;
  now timestamptz := clock_timestamp();
  l fencelock.line;
  more text;
  seen_lines bigint := 0;
  highest bigint := 0;
  gone text[] := '{}';
BEGIN
  upto := NULL;
  reaped := 0;
  news := '';
  PERFORM FROM fencelock.layout FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    upto := after;
    RETURN NEXT;
    RETURN;
  END IF;
  DELETE FROM fencelock.watcher w
  USING (SELECT k.client, k.scope, k.prefix FROM fencelock.watcher k WHERE k.expiry < now FOR UPDATE SKIP LOCKED) k
  WHERE w.client = k.client AND w.scope = k.scope AND w.prefix = k.prefix;
  FOR l IN
    SELECT * FROM fencelock.line k WHERE k.name > coalesce(after, '') COLLATE "C" ORDER BY k.name COLLATE "C" LIMIT most
  LOOP
    seen_lines := seen_lines + 1;
    upto := l.name;
    CONTINUE WHEN NOT (l.earliest <= now OR (l.total = 0 AND l.touched < now - idle * interval '1 microsecond'));
    SELECT * INTO l FROM fencelock.line k WHERE k.name = upto FOR UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    r := fencelock.sweep(me, now, l);
    l := r.l;
    more := r.news;
    news := news || more;
    IF l.total = 0 AND l.touched < now - idle * interval '1 microsecond' THEN
      highest := greatest(highest, l.last);
      gone := gone || l.name;
    END IF;
  END LOOP;
  reaped := cardinality(gone);
  IF reaped > 0 THEN
    UPDATE fencelock.layout SET floor = greatest(floor, highest);
    DELETE FROM fencelock.line k WHERE k.name = ANY (gone);
  END IF;
  IF seen_lines < most THEN
    upto := NULL;
  END IF;
  RETURN NEXT;
END $$;

-- Inside a transaction of the user's own: locks the line's row until that ends. `wait` is in milliseconds; 0: not at all, NULL:
-- for ever. `what`: 0 locked, 1 not within that time, 2 somebody is in the line by a ticket. What is not 0 keeps no lock.
CREATE OR REPLACE FUNCTION fencelock.lock_in(n text, said text, wait bigint)
RETURNS TABLE (what integer,
  s_number bigint, s_mode integer, s_weight integer, s_capacity integer, s_owner text, s_host text,
  s_pid bigint, s_identity text, s_reason text, s_value text, s_entered bigint, s_admitted bigint, s_left bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  before text := current_setting('lock_timeout');
  now timestamptz;
  l fencelock.line;
  t fencelock.ticket;
BEGIN
  what := 0;
  BEGIN
    -- Whoever makes a line's row is waited for as well, so NOWAIT would not do.
    PERFORM set_config('lock_timeout', CASE WHEN wait IS NULL THEN '0' ELSE greatest(wait, 1)::text END, true);
    LOOP
      SELECT * INTO l FROM fencelock.line k WHERE k.name = n FOR NO KEY UPDATE;
      EXIT WHEN FOUND;
      INSERT INTO fencelock.line (name, long, last, touched) VALUES (n, said, 0, clock_timestamp()) ON CONFLICT DO NOTHING;
      EXIT WHEN FOUND;
    END LOOP;
    IF l.total > 0 THEN
      now := clock_timestamp();
      SELECT * INTO t FROM fencelock.ticket k WHERE k.name = n AND k.expiry > now ORDER BY k.number LIMIT 1;
      IF FOUND THEN
        RAISE 'held by a ticket' USING ERRCODE = 'FL001';
      END IF;
    END IF;
    PERFORM set_config('lock_timeout', before, true);
  EXCEPTION
    -- Rolls back to the inner BEGIN: the row is let go, and the setting is what it was.
    WHEN lock_not_available THEN
      what := 1;
    WHEN SQLSTATE 'FL001' THEN
      what := 2;
      SELECT * INTO s_number, s_mode, s_weight, s_capacity, s_owner, s_host, s_pid, s_identity, s_reason, s_value, s_entered, s_admitted,
        s_left FROM fencelock.seen(t, now);
  END;
  RETURN NEXT;
END $$;

INSERT INTO fencelock.layout (version, floor) VALUES (1, 0) ON CONFLICT DO NOTHING;
