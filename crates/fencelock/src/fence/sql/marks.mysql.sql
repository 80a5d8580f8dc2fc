-- Both marks: the name, the label.
SELECT exclusive_mark, shared_mark FROM fencelock_fence WHERE name = ? AND label = ?
