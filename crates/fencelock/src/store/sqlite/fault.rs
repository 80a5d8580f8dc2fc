//! What a failed statement means: one clear error for each way in which a file can fail us, and whether it may have had an
//! effect.

use crate::error::{Error, ErrorKind};
use rusqlite::ErrorCode;
use std::path::Path;

/// Why an act on the file ended early. Whatever it is, the transaction is rolled back.
#[derive(Debug)]
pub(super) enum Stop {
    /// SQLite says so.
    Fault(rusqlite::Error),
    /// We say so.
    Refused(Error),
    /// The reserved numbers are used up: to be run again where a commit is synced to the disk.
    NeedsBlock,
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Stop {
        Stop::Fault(error)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Refused(error)
    }
}

/// Whether somebody else is writing right now.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// The error that the user sees. Its effect is none: who failed in a commit says otherwise.
pub(super) fn explain(error: rusqlite::Error, path: &Path) -> Error {
    let path = path.display();
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Unavailable, format!("another process keeps the store file {path} locked"))
        }
        Some(ErrorCode::ReadOnly) => (ErrorKind::Denied, format!("the store file {path} is read-only")),
        Some(ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied | ErrorCode::CannotOpen) => {
            (ErrorKind::Denied, format!("the store file {path}, or a file beside it, cannot be opened"))
        }
        Some(ErrorCode::DiskFull) => (ErrorKind::Unavailable, format!("the disk of the store file {path} is full")),
        Some(ErrorCode::SystemIoFailure | ErrorCode::OutOfMemory | ErrorCode::FileLockingProtocolFailed) => {
            (ErrorKind::Unavailable, format!("the store file {path} cannot be read or written"))
        }
        Some(ErrorCode::NotADatabase) => (ErrorKind::Broken, format!("{path} is not a fencelock store file")),
        _ => (ErrorKind::Broken, format!("the store file {path} is damaged")),
    };
    Error::new(kind, message).caused_by(error)
}
