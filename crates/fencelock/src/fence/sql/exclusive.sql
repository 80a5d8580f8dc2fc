-- An exclusive access: $1 the name, $2 the label, $3 the token. One row is written if it is accepted, none if it is not.
INSERT INTO fencelock_fence (name, label, exclusive_mark, shared_mark, accepted) VALUES ($1, $2, $3, 0, 1)
ON CONFLICT (name, label) DO UPDATE SET
  exclusive_mark = excluded.exclusive_mark,
  accepted = fencelock_fence.accepted + 1
WHERE excluded.exclusive_mark >= fencelock_fence.exclusive_mark
  AND excluded.exclusive_mark >= fencelock_fence.shared_mark
