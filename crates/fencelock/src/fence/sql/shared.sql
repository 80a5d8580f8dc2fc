-- A shared access: $1 the name, $2 the label, $3 the token. One row is written if it is accepted, none if it is not.
INSERT INTO fencelock_fence (name, label, exclusive_mark, shared_mark, accepted) VALUES ($1, $2, 0, $3, 1)
ON CONFLICT (name, label) DO UPDATE SET
  shared_mark = CASE WHEN excluded.shared_mark > fencelock_fence.shared_mark
    THEN excluded.shared_mark ELSE fencelock_fence.shared_mark END,
  accepted = fencelock_fence.accepted + 1
WHERE excluded.shared_mark >= fencelock_fence.exclusive_mark
