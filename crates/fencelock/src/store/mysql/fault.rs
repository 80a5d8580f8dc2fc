//! What the errors of MySQL and MariaDB mean to us: what to do about it, and whether the call may have had an effect.

use crate::error::{Error, ErrorKind};
use mysql_async::ServerError;

/// Whether the same script may simply be sent again: it was rolled back for the sake of another one, or waited too long.
pub(super) fn is_transient(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(server) if matches!(server.code, 1205 | 1213))
}

/// Whether the server cannot be written to; the script is rolled back with its connection.
pub(super) fn is_read_only(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(server) if matches!(server.code, 1290 | 1792 | 1836))
}

/// Whether our tables are not there.
pub(super) fn is_missing(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(server) if server.code == 1146)
}

/// A connection that could not be made: nothing was sent.
pub(super) fn of_connecting(error: mysql_async::Error, address: &str) -> Error {
    match error {
        mysql_async::Error::Server(server) => of_server(&server, address),
        other => Error::new(ErrorKind::Unavailable, format!("cannot connect to {address}: {other}")),
    }
}

/// A script that failed after it was sent.
pub(super) fn of_call(error: mysql_async::Error, address: &str) -> Error {
    match error {
        mysql_async::Error::Server(server) => of_server(&server, address),
        other => Error::unknown(format!("no answer from {address}")).caused_by(other),
    }
}

/// A statement in a transaction of the user's own: whatever it did ends with that.
pub(crate) fn of_transaction(error: mysql_async::Error) -> Error {
    match error {
        mysql_async::Error::Server(server) if server.code == 1213 => {
            Error::new(ErrorKind::Deadlock, "the database ended this transaction to end a deadlock: lock in one order")
                .caused_by(server)
        }
        other => of_call(other, "the database"),
    }
}

/// What the server said. A script that failed is rolled back with its connection, unless the server was about to end: then it
/// may have been committed a moment before.
fn of_server(server: &ServerError, address: &str) -> Error {
    let said = format!("{} ({})", server.message, server.code);
    let new = |kind, message: String| Error::new(kind, message);
    match server.code {
        1044 | 1045 | 1130 | 1251 | 1698 => {
            new(ErrorKind::Denied, format!("{address} refused the user or password: {said}"))
        }
        1142 | 1143 | 1227 | 1370 => new(
            ErrorKind::Denied,
            format!(
                "{said}; `fencelock migrate` makes the tables, `fencelock migrate --print` says which rights are needed"
            ),
        ),
        1049 => new(ErrorKind::InvalidInput, format!("{address}: {said}")),
        1146 | 1054 => new(
            ErrorKind::Broken,
            format!("{address} has no tables of ours, or not all: {said}; run `fencelock migrate`"),
        ),
        1290 | 1792 | 1836 => new(ErrorKind::Unavailable, format!("{address} is read-only, a replica perhaps: {said}")),
        1665 => new(ErrorKind::Unsupported, format!("{address} needs a binary log in row format: {said}")),
        1205 | 1213 => new(ErrorKind::Unavailable, format!("{address} is too busy: {said}")),
        1021 | 1037 | 1038 | 1040 | 1041 | 1114 | 1203 | 1226 | 3024 | 1969 => {
            new(ErrorKind::Unavailable, format!("{address} is not able to serve us: {said}"))
        }
        1053 | 1077 | 1152 | 1158..=1161 | 1317 | 1927 | 3169 => {
            Error::unknown(format!("{address} ended the connection: {said}"))
        }
        _ => new(ErrorKind::Broken, format!("{address}: {said}")),
    }
}
