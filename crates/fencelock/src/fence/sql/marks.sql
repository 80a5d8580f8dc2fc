-- Both marks of $1, the name, and $2, the label.
SELECT exclusive_mark, shared_mark FROM fencelock_fence WHERE name = $1 AND label = $2
