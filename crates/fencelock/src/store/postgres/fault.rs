//! What PostgreSQL's errors mean to us: what to do about it, and whether the call may have had an effect.

use crate::error::{Error, ErrorKind};
use tokio_postgres::error::{DbError, Severity, SqlState};

/// Whether the same call may simply be sent again: it was rolled back for the sake of another one.
pub(super) fn is_transient(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(code) if *code == SqlState::T_R_SERIALIZATION_FAILURE || *code == SqlState::T_R_DEADLOCK_DETECTED)
}

/// Whether the layout is not there.
pub(super) fn is_missing(error: &tokio_postgres::Error) -> bool {
    let missing = [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME, SqlState::UNDEFINED_FUNCTION];
    error.code().is_some_and(|code| missing.contains(code))
}

/// Whether a prepared statement is not there any more, or does not fit the layout that was made meanwhile: it did nothing.
pub(super) fn is_forgotten(error: &tokio_postgres::Error) -> bool {
    let forgotten = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::FEATURE_NOT_SUPPORTED];
    error.code().is_some_and(|code| forgotten.contains(code))
}

/// Whether a pooler or server did not like our start-up parameters.
pub(super) fn is_unwanted_parameter(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| *code == SqlState::PROTOCOL_VIOLATION)
        || error.as_db_error().is_some_and(|db| db.message().contains("unsupported startup parameter"))
}

/// A connection that could not be made: nothing was sent.
pub(super) fn of_connecting(error: tokio_postgres::Error, address: &str) -> Error {
    match error.as_db_error() {
        Some(db) => of_server(db, address),
        None => {
            // The driver's own words for a bad host or a refused connection; they never have the password in them.
            let mut message = format!("cannot connect to {address}");
            if let Some(cause) = std::error::Error::source(&error) {
                message.push_str(&format!(": {cause}"));
            } else {
                message.push_str(&format!(": {error}"));
            }
            Error::new(ErrorKind::Unavailable, message)
        }
    }
}

/// A call that failed after it was sent.
pub(super) fn of_call(error: tokio_postgres::Error, address: &str) -> Error {
    match error.as_db_error() {
        // A server that ends with these words, its log without room perhaps, may have committed a moment before.
        Some(db) if matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic)) => {
            of_server(db, address).effect_unknown()
        }
        Some(db) => of_server(db, address),
        None if error.is_closed() => Error::unknown(format!("{address} closed the connection")),
        None => Error::unknown(format!("no answer from {address}")).caused_by(error),
    }
}

/// A statement in a transaction of the user's own: whatever it did ends with that.
pub(crate) fn of_transaction(error: tokio_postgres::Error) -> Error {
    match error.code() {
        Some(code) if *code == SqlState::T_R_DEADLOCK_DETECTED => {
            Error::new(ErrorKind::Deadlock, "the database ended this transaction to end a deadlock: lock in one order")
                .caused_by(error)
        }
        _ => of_call(error, "the database"),
    }
}

/// What the server said. A statement that failed was rolled back, unless the server was ending the connection: then it may
/// have been committed a moment before.
fn of_server(db: &DbError, address: &str) -> Error {
    let code = db.code();
    let said = format!("{} ({})", db.message(), code.code());
    let class = code.code().get(..2).unwrap_or("");
    let new = |kind, message: String| Error::new(kind, message);
    match code.code() {
        "25006" => new(ErrorKind::Unavailable, format!("{address} is read-only, a standby perhaps: {said}")),
        "25001" => new(ErrorKind::Unsupported, said),
        "28000" | "28P01" => new(ErrorKind::Denied, format!("{address} refused the user or password: {said}")),
        "42501" => new(
            ErrorKind::Denied,
            format!(
                "{said}; `fencelock migrate` makes the tables, `fencelock migrate --print` says which rights are needed"
            ),
        ),
        "3D000" => new(ErrorKind::InvalidInput, format!("{address}: {said}")),
        "42P01" | "3F000" | "42883" => new(
            ErrorKind::Broken,
            format!("{address} has no tables of ours, or not all: {said}; run `fencelock migrate`"),
        ),
        "53100" | "53200" | "53300" | "53400" | "57P03" => {
            new(ErrorKind::Unavailable, format!("{address} is not able to serve us: {said}"))
        }
        "57014" => new(ErrorKind::Unavailable, format!("{address} took too long: {said}")),
        "40001" | "40P01" | "55P03" => new(ErrorKind::Unavailable, format!("{address} is too busy: {said}")),
        "57P01" | "57P02" | "57P05" | "40003" => Error::unknown(format!("{address} ended the connection: {said}")),
        _ if class == "08" => Error::unknown(format!("{address}: {said}")),
        _ if class == "53" || class == "58" => new(ErrorKind::Unavailable, format!("{address}: {said}")),
        _ if class == "22" => new(ErrorKind::InvalidInput, format!("{address} cannot keep this: {said}")),
        _ => new(ErrorKind::Broken, format!("{address}: {said}")),
    }
}
