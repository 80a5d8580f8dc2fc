-- fencelock on PostgreSQL: one ticket at a time, layout 1. The answers are those of enter and leave in verbs.sql, which also do whatever
-- is not the common case. Plain parameters and few variables: in PL/pgSQL each costs about as much as a small statement.

-- Joins one line. If it is there and empty, two statements: the condition is judged again on the row once that is locked.
CREATE OR REPLACE FUNCTION fencelock.enter_one(
  me text, n text, said text, ticket_id bytea, mode integer, w integer, cap integer, duration bigint,
  queue boolean, owner bytea, held text, host text, pid bigint, identity text, reason text, val text)
RETURNS TABLE (what integer, token bigint, lease bigint, made boolean, news text,
  s_number bigint, s_mode integer, s_weight integer, s_capacity integer, s_owner text, s_host text,
  s_pid bigint, s_identity text, s_reason text, s_value text, s_entered bigint, s_admitted bigint, s_left bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  now timestamptz;
  until timestamptz;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    UPDATE fencelock.line k SET last = k.last + 1, frontier = k.last + 1, inside = w, total = w,
      touched = clock_timestamp(), earliest = clock_timestamp() + duration * interval '1 microsecond'
    WHERE k.name = n AND k.total = 0 AND k.frontier > 0
    RETURNING k.last, k.touched, k.earliest INTO token, now, until;
    IF FOUND THEN
      INSERT INTO fencelock.ticket
      VALUES (n, ticket_id, token, w, cap, mode, me, now, now, until, owner, held, host, pid, identity, reason, val);
      IF EXISTS (SELECT FROM fencelock.watcher) THEN
        PERFORM fencelock.changed(me, n, said, now);
      END IF;
      what := 0;
      lease := duration;
      made := false;
      RETURN NEXT;
      RETURN;
    END IF;
  END IF;
  RETURN QUERY SELECT * FROM fencelock.enter(me, ARRAY[n], ARRAY[said], ARRAY[ticket_id], ARRAY[mode], ARRAY[w], ARRAY[cap],
    ARRAY[duration], ARRAY[queue], ARRAY[owner], ARRAY[held], ARRAY[host], ARRAY[pid], ARRAY[identity], ARRAY[reason], ARRAY[val]);
END $$;

-- Leaves one line. If nobody waits there, three statements: lock, delete, update.
CREATE OR REPLACE FUNCTION fencelock.leave_one(me text, n text, ticket_id bytea)
RETURNS TABLE (there boolean, news text)
LANGUAGE plpgsql AS $$
DECLARE
  now timestamptz;
  l record;
  w integer;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    SELECT k.inside, k.total, k.earliest, k.long INTO l FROM fencelock.line k WHERE k.name = n FOR NO KEY UPDATE;
    now := clock_timestamp();
    IF l.inside = l.total AND l.earliest > now THEN
      DELETE FROM fencelock.ticket k WHERE k.id = ticket_id AND k.name = n RETURNING k.weight INTO w;
      there := FOUND;
      IF there THEN
        UPDATE fencelock.line k SET inside = k.inside - w, total = k.total - w, touched = now,
          earliest = CASE WHEN k.total = w THEN 'infinity' ELSE k.earliest END
        WHERE k.name = n;
        IF EXISTS (SELECT FROM fencelock.watcher) THEN
          PERFORM fencelock.changed(me, n, l.long, now);
        END IF;
      END IF;
      RETURN NEXT;
      RETURN;
    END IF;
  END IF;
  RETURN QUERY SELECT * FROM fencelock.leave(me, ARRAY[n], ARRAY[ticket_id]);
END $$;
