
-- Writes a register, or deletes it (new_value is NULL), if nobody has since `seen`. NULL: somebody was faster.
--
-- A register without a value has the floor of the layout as its version, and a new one begins above it; a deletion raises it above
-- its own. So no version of a register ever comes back, and nothing stays of one that was deleted.
CREATE OR REPLACE FUNCTION fencelock.store_if(n text, said text, seen bigint, new_value bytea, new_write bytea) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  r record;
  f bigint;
BEGIN
  SELECT version, write INTO r FROM fencelock.register WHERE name = n FOR UPDATE;
  IF FOUND THEN
    IF r.write = new_write THEN
      RETURN r.version;
    END IF;
    IF r.version <> seen THEN
      RETURN NULL;
    END IF;
    IF new_value IS NOT NULL THEN
      UPDATE fencelock.register SET version = seen + 1, write = new_write, value = new_value WHERE name = n;
    ELSE
      DELETE FROM fencelock.register WHERE name = n;
      UPDATE fencelock.layout SET floor = greatest(floor, seen) + 1;
    END IF;
    RETURN seen + 1;
  END IF;
  IF new_value IS NOT NULL THEN
    INSERT INTO fencelock.register VALUES (n, said, 0, new_write, new_value) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
      RETURN NULL;
    END IF;
  END IF;
  -- Only now: whoever deleted it before us has committed its floor.
  SELECT floor INTO f FROM fencelock.layout;
  IF new_value IS NULL THEN
    RETURN CASE WHEN seen >= f THEN seen END;
  END IF;
  IF seen < f THEN
    DELETE FROM fencelock.register WHERE name = n;
    RETURN NULL;
  END IF;
  UPDATE fencelock.register SET version = f + 1 WHERE name = n;
  RETURN f + 1;
END $$;
