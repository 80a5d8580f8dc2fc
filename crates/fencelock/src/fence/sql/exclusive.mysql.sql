-- An exclusive access: the token, the name, the label, the token, the token. One row is written if it is accepted, none if it
-- is not. The count changes with every access, so "found" and "changed" say the same: drivers differ in what they report.
UPDATE fencelock_fence SET exclusive_mark = ?, accepted = accepted + 1
WHERE name = ? AND label = ? AND exclusive_mark <= ? AND shared_mark <= ?
