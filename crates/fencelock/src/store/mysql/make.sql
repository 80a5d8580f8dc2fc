-- Makes a line: {name}, {said}. A transaction of its own: whoever finds it made by somebody else must not keep a lock on it.
INSERT IGNORE INTO fencelock_line (name, said, last, touched, kept) VALUES ({name}, {said}, 0, 0, 0);
