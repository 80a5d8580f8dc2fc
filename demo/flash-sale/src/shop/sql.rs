//! Every statement of the shop. Parameters are `$1`, `$2`, in the order in which they come; MySQL gets question marks.

/// SQLite. The first of the two lets readers go on while one writes, and loses nothing when a process is killed.
pub(super) const SQLITE: &str = "
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS product (
  id INTEGER PRIMARY KEY, product_name TEXT NOT NULL, stock INTEGER NOT NULL, version INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS product_stripe (
  product_id INTEGER NOT NULL, stripe INTEGER NOT NULL, stock INTEGER NOT NULL, PRIMARY KEY (product_id, stripe));
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY AUTOINCREMENT, product_id INTEGER NOT NULL, node TEXT NOT NULL)";

/// PostgreSQL.
pub(super) const POSTGRES: &str = "
CREATE TABLE IF NOT EXISTS product (
  id BIGINT PRIMARY KEY, product_name TEXT NOT NULL, stock BIGINT NOT NULL, version BIGINT NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS product_stripe (
  product_id BIGINT NOT NULL, stripe BIGINT NOT NULL, stock BIGINT NOT NULL, PRIMARY KEY (product_id, stripe));
CREATE TABLE IF NOT EXISTS orders (id BIGSERIAL PRIMARY KEY, product_id BIGINT NOT NULL, node TEXT NOT NULL)";

/// MySQL and MariaDB, one statement each.
pub(super) const MYSQL: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS product (id BIGINT PRIMARY KEY, product_name VARCHAR(100) NOT NULL,
       stock BIGINT NOT NULL, version BIGINT NOT NULL DEFAULT 0) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS product_stripe (product_id BIGINT NOT NULL, stripe BIGINT NOT NULL,
       stock BIGINT NOT NULL, PRIMARY KEY (product_id, stripe)) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS orders (id BIGINT PRIMARY KEY AUTO_INCREMENT, product_id BIGINT NOT NULL,
       node VARCHAR(100) NOT NULL) ENGINE = InnoDB",
];

/// What was there before.
pub(super) const CLEAR: [&str; 3] = ["DELETE FROM orders", "DELETE FROM product_stripe", "DELETE FROM product"];
pub(super) const ADD_PRODUCT: &str = "INSERT INTO product (id, product_name, stock) VALUES ($1, $2, $3)";
pub(super) const ADD_STRIPE: &str = "INSERT INTO product_stripe (product_id, stripe, stock) VALUES ($1, $2, $3)";

/// The naive read, and the same under a lock of the row.
pub(super) const READ: &str = "SELECT stock, version FROM product WHERE id = $1";
pub(super) const READ_FOR_UPDATE: &str = "SELECT stock, version FROM product WHERE id = $1 FOR UPDATE";
/// The second column is for the shape alone.
pub(super) const READ_STRIPE: &str = "SELECT stock, stripe FROM product_stripe WHERE product_id = $1 AND stripe = $2";

/// The write. It counts down what is there, whatever was read.
pub(super) const TAKE: &str = "UPDATE product SET stock = stock - 1, version = version + 1 WHERE id = $1";
pub(super) const TAKE_IF_VERSION: &str =
    "UPDATE product SET stock = stock - 1, version = version + 1 WHERE id = $1 AND version = $2";
pub(super) const TAKE_IF_STOCK: &str =
    "UPDATE product SET stock = stock - 1, version = version + 1 WHERE id = $1 AND stock = $2";
pub(super) const TAKE_STRIPE: &str =
    "UPDATE product_stripe SET stock = stock - 1 WHERE product_id = $1 AND stripe = $2";
pub(super) const ORDER: &str = "INSERT INTO orders (product_id, node) VALUES ($1, $2)";

/// What is left of one product, its stripes included.
pub(super) const LEFT: &str = "SELECT (SELECT COALESCE(SUM(stock), 0) FROM product WHERE id = $1)
  + (SELECT COALESCE(SUM(stock), 0) FROM product_stripe WHERE product_id = $2)";
/// What is left of all, and who sold how much.
pub(super) const LEFT_OF_ALL: &str =
    "SELECT (SELECT COALESCE(SUM(stock), 0) FROM product) + (SELECT COALESCE(SUM(stock), 0) FROM product_stripe)";
pub(super) const SOLD_BY: &str = "SELECT node, COUNT(*) FROM orders GROUP BY node ORDER BY node";

/// PostgreSQL's sums are of another type than what they sum.
pub(super) fn postgres(text: &str) -> String {
    format!("SELECT (q.n)::bigint FROM ({} AS n) AS q", text.trim_end())
}

/// The same text for MySQL.
pub(super) fn mysql(text: &str) -> String {
    ["$1", "$2", "$3"].iter().fold(text.to_string(), |text, dollar| text.replace(dollar, "?"))
}
