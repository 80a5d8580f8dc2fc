-- Makes the row: the name, the label. An INSERT IGNORE would take a shared lock where the row is there already, and two
-- transactions that both want to write it then end each other; this takes an exclusive one.
INSERT INTO fencelock_fence (name, label) VALUES (?, ?) ON DUPLICATE KEY UPDATE name = fencelock_fence.name
