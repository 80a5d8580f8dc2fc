-- Both marks: the name, the label. They are locked by the statements before; FOR UPDATE so that it is no older picture.
SELECT exclusive_mark, shared_mark FROM fencelock_fence WHERE name = ? AND label = ? FOR UPDATE
