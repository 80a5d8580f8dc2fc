//! Inside a transaction of mysql_async; the same statements for other drivers; and whether a locking statement of your own
//! locks one row or the whole table.

use super::{InTransaction, Parameter, Statement, Wait, not_got};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Overtaken;
use crate::fence::sql::{self, Dialect};
use crate::name::Name;
use crate::store::mysql::{of_transaction, seen};
use crate::store::{BoxFuture, Seen};
use crate::token::Token;
use mysql_async::prelude::Queryable;
use mysql_async::{Params, Row, Transaction, TxOpts, Value};

/// Makes the row that [`lock_in`](super::lock_in) locks, in a transaction of its own and for ever: rows that come and go are what
/// InnoDB deadlocks on. Call it once for each name that transactions lock, when the program starts or the thing that the name
/// stands for is made. It may be called again. One round trip if the row is there, two if not.
///
/// # Errors
/// `InvalidName`, and everything that the database can refuse.
///
/// # Cancel safety
/// The row may or may not have been made. Call it again.
pub async fn prepare(connection: &mut mysql_async::Conn, name: &str) -> Result<()> {
    let name = Name::new("", name)?;
    let key = Value::Bytes(name.key().as_bytes().to_vec());
    let kept = "SELECT kept FROM fencelock_line WHERE name = ?";
    if connection.exec_first::<i64, _, _>(kept, (key.clone(),)).await.map_err(of_transaction)? == Some(1) {
        return Ok(());
    }
    let said = name.long().map_or(Value::NULL, |long| Value::Bytes(crate::store::sql::text(long).into_bytes()));
    let mut alone = connection.start_transaction(TxOpts::default()).await.map_err(of_transaction)?;
    let make = "INSERT INTO fencelock_line (name, said, last, touched, kept) VALUES (?, ?, 0, 0, 1) ON DUPLICATE KEY UPDATE kept = 1";
    alone.exec_drop(make, (key, said)).await.map_err(of_transaction)?;
    alone.commit().await.map_err(of_transaction)
}

/// What [`lock_in`](super::lock_in) runs, in this order. The first one that gives a row gives `last`, `touched` and `expiry` of
/// the locked row (none: [`prepare`] it; an error 1205 or 3572: not got). The last one gives a row for whoever holds the name by a lease:
/// then it is not yours, and the transaction has to be rolled back.
///
/// # Errors
/// `InvalidName`.
pub fn lock_statements(name: &str, wait: Wait) -> Result<Vec<Statement>> {
    let name = Name::new("", name)?;
    let plain = |text: &str| Statement { text: text.into(), parameters: Vec::new() };
    let mut all = Vec::new();
    if let Some(seconds) = seconds(wait) {
        all.push(plain(&remember(seconds)));
    }
    all.push(Statement { text: row(wait), parameters: vec![Parameter::Text(Some(name.key().into()))] });
    if seconds(wait).is_some() {
        all.push(plain(RESTORE));
    }
    all.push(Statement { text: HOLDER.into(), parameters: vec![Parameter::Text(Some(name.key().into())); 2] });
    Ok(all)
}

const RESTORE: &str = "SET SESSION innodb_lock_wait_timeout = @fencelock_wait";

/// A picture that is older than the lock is not to be trusted, so it says how old it is.
/// Who is alone in a line stands in the line's own row.
const HOLDER: &str = "SELECT t.number, t.mode, t.weight, t.capacity, LOWER(HEX(t.owner)), t.host, t.pid, t.identity, t.reason, \
    n.now - t.entered, n.now - t.admitted, t.expiry - n.now, t.value \
    FROM (SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) AS now) n \
    JOIN fencelock_ticket t ON t.name = ? AND t.expiry > n.now \
    UNION ALL SELECT l.number, l.mode, l.weight, l.capacity, LOWER(HEX(l.owner)), l.host, l.pid, l.identity, l.reason, \
    n.now - l.entered, n.now - l.entered, l.expiry - n.now, l.value \
    FROM (SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) AS now) n \
    JOIN fencelock_line l ON l.name = ? AND l.expiry > n.now ORDER BY 1 LIMIT 1";

const PICTURE: &str = "SELECT last, touched, expiry FROM fencelock_line WHERE name = ?";

fn seconds(wait: Wait) -> Option<u64> {
    match wait {
        Wait::No => None,
        Wait::AtMost(limit) => {
            let begun = limit.as_secs() + u64::from(limit.subsec_nanos() > 0);
            Some(begun.clamp(1, 1_073_741_824))
        }
        Wait::Forever => Some(1_073_741_824),
    }
}

fn remember(seconds: u64) -> String {
    format!("SET @fencelock_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = {seconds}")
}

fn row(wait: Wait) -> String {
    let now = if wait == Wait::No { " NOWAIT" } else { "" };
    format!("SELECT last, touched, expiry FROM fencelock_line WHERE name = ? FOR UPDATE{now}")
}

async fn lock(transaction: &mut Transaction<'_>, name: &Name, wait: Wait) -> Result<()> {
    let key = || (Value::Bytes(name.key().as_bytes().to_vec()),);
    if let Some(seconds) = seconds(wait) {
        transaction.query_drop(remember(seconds)).await.map_err(of_transaction)?;
    }
    let locked: std::result::Result<Option<(i64, i64, i64)>, _> = transaction.exec_first(row(wait), key()).await;
    if seconds(wait).is_some() {
        // Of a transaction that was rolled back this may fail as well: the first error is the one that counts.
        let restored = transaction.query_drop(RESTORE).await;
        if locked.is_ok() {
            restored.map_err(of_transaction)?;
        }
    }
    let locked = match locked {
        Ok(Some(locked)) => locked,
        Ok(None) => {
            let message = "there is no row to lock: call fencelock::sql::mysql::prepare first";
            return Err(Error::new(ErrorKind::InvalidInput, message).named(name.shown()));
        }
        Err(mysql_async::Error::Server(server)) if matches!(server.code, 1205 | 3572) => {
            return Err(not_got(name, wait));
        }
        Err(error) => return Err(of_transaction(error)),
    };
    let picture: Option<(i64, i64, i64)> = transaction.exec_first(PICTURE, key()).await.map_err(of_transaction)?;
    if picture != Some(locked) {
        let message =
            "the transaction's picture of the database is older than its lock: lock first, or use READ COMMITTED";
        return Err(Error::new(ErrorKind::Unavailable, message).named(name.shown()));
    }
    let twice = (key().0, key().0);
    let holder: Option<Row> = transaction.exec_first(HOLDER, twice).await.map_err(of_transaction)?;
    let holder: Option<Seen> = holder.as_ref().map(seen).transpose()?.map(|(_, seen)| seen);
    if holder.is_some() {
        return Err(Error::new(ErrorKind::Held, "held").named(name.shown()).held_by(holder));
    }
    Ok(())
}

async fn fence(transaction: &mut Transaction<'_>, token: &Token) -> Result<Option<Overtaken>> {
    let mut written = 0;
    for statement in sql::access(Dialect::MySql, token)? {
        transaction.exec_drop(statement.text, bound(statement.parameters)).await.map_err(of_transaction)?;
        written = transaction.affected_rows();
    }
    if written == 1 {
        return Ok(None);
    }
    let statement = sql::marks(Dialect::MySql, token);
    let marks = transaction.exec_first(statement.text, bound(statement.parameters)).await.map_err(of_transaction)?;
    let lost = || Error::new(ErrorKind::Broken, "the database lost the marks of the fence");
    let (exclusive, shared) = marks.ok_or_else(lost)?;
    Ok(Some(sql::overtaken(token, exclusive, shared)))
}

fn bound(parameters: Vec<sql::Parameter>) -> Params {
    let one = |parameter| match parameter {
        sql::Parameter::Text(text) => Value::Bytes(text.into_bytes()),
        sql::Parameter::Number(number) => Value::Int(number),
    };
    Params::Positional(parameters.into_iter().map(one).collect())
}

impl InTransaction for Transaction<'_> {
    fn lock_line<'a>(&'a mut self, name: &'a Name, wait: Wait) -> BoxFuture<'a, Result<()>> {
        Box::pin(lock(self, name, wait))
    }

    fn fence<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<Option<Overtaken>>> {
        Box::pin(fence(self, token))
    }
}

fn value(parameter: &Parameter) -> Value {
    match parameter {
        Parameter::Text(text) => text.as_ref().map_or(Value::NULL, |text| Value::Bytes(text.clone().into_bytes())),
        Parameter::Number(number) => number.map_or(Value::NULL, Value::Int),
    }
}

impl super::change::Changing for Transaction<'_> {
    fn change<'a>(&'a mut self, statement: &'a Statement) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            let parameters = Params::Positional(statement.parameters.iter().map(value).collect());
            self.exec_drop(&statement.text, parameters).await.map_err(of_transaction)?;
            Ok(self.affected_rows())
        })
    }
}

/// Whether a locking statement of your own (`SELECT ... FOR UPDATE`) finds its rows by a unique key: asks the server how it
/// would run it. Anything else locks every row that it looks at, which may be the whole table. One round trip; nothing is locked.
///
/// For an UPDATE or DELETE check the SELECT with the same condition: the server explains those in other words.
///
/// # Errors
/// `InvalidInput`, with the table and the way it would be read; everything that the database can refuse.
///
/// # Cancel safety
/// Nothing is changed.
pub async fn check_locking(
    connection: &mut impl Queryable,
    statement: &str,
    parameters: impl Into<Params> + Send,
) -> Result<()> {
    let plan: Vec<Row> =
        connection.exec(format!("EXPLAIN {statement}"), parameters.into()).await.map_err(of_transaction)?;
    let text = |row: &Row, column: &str| row.get::<Option<String>, _>(column).flatten().unwrap_or_default();
    for row in &plan {
        let (access, extra) = (text(row, "type"), text(row, "Extra"));
        // A row that is looked up by a unique key and is not there has no access of its own.
        let missing = access.is_empty() && extra.contains("const table");
        if !matches!(access.as_str(), "const" | "eq_ref" | "system") && !missing {
            let (table, key) = (text(row, "table"), text(row, "key"));
            let by = if key.is_empty() { "no index".to_string() } else { format!("the index {key}") };
            let message = format!(
                "this would lock more than it names: table {table} is read as {:?} by {by}; give the condition a unique key",
                access
            );
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
    }
    Ok(())
}
