-- SQLite and PostgreSQL. One row for each lock that a resource has seen, by the name and the store's label.
CREATE TABLE IF NOT EXISTS fencelock_fence (
  name TEXT NOT NULL,
  label TEXT NOT NULL,
  exclusive_mark BIGINT NOT NULL DEFAULT 0,
  shared_mark BIGINT NOT NULL DEFAULT 0,
  accepted BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (name, label)
)
