-- A shared access: the token, the name, the label, the token. One row is written if it is accepted, none if it is not.
UPDATE fencelock_fence SET shared_mark = GREATEST(shared_mark, ?), accepted = accepted + 1
WHERE name = ? AND label = ? AND exclusive_mark <= ?
