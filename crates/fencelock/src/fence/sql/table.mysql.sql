-- MySQL and MariaDB. Compared byte by byte: the usual collations take "A" and "a" for the same name.
CREATE TABLE IF NOT EXISTS fencelock_fence (
  name VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  label VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  exclusive_mark BIGINT NOT NULL DEFAULT 0,
  shared_mark BIGINT NOT NULL DEFAULT 0,
  accepted BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (name, label)
) ENGINE = InnoDB
