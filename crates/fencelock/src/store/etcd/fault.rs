//! What the server's refusals and the connection's failures mean: one clear error for each.

use crate::error::{Error, ErrorKind};
use tonic::{Code, Status};

/// An error that came instead of an answer.
pub(super) struct Fault {
    pub(super) error: Error,
    /// The session has ended: nothing was done.
    pub(super) no_lease: bool,
    /// The server wants to be told anew who we are: nothing was done.
    pub(super) stale_token: bool,
    /// The user has no rights on that key.
    pub(super) forbidden: bool,
    /// Another server, or another connection, may do better.
    pub(super) elsewhere: bool,
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        fault.error
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault { error, no_lease: false, stale_token: false, forbidden: false, elsewhere: false }
    }
}

impl Fault {
    /// The same, for a second one who waited for the same answer.
    pub(super) fn again(&self) -> Fault {
        Fault { error: self.error.again(), ..*self }
    }
}

/// No answer in time.
pub(super) fn late(address: &str) -> Fault {
    Fault { elsewhere: true, ..Error::unknown(format!("{address} did not answer in time")).into() }
}

/// Cannot be reached at all: nothing was asked.
pub(super) fn unreachable(address: &str, error: tonic::transport::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot connect to {address}")).caused_by(innermost(error))
}

/// The transport's own words say little; what caused it says more.
fn innermost(error: tonic::transport::Error) -> String {
    let mut cause: &dyn std::error::Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// What the server said, or the connection.
pub(super) fn of(status: &Status, address: &str) -> Fault {
    let said = status.message().to_string();
    let refused = |kind, message: &str| Fault::from(Error::new(kind, message).caused_by(said.clone()));
    let denied = |message| refused(ErrorKind::Denied, message);
    match status.code() {
        Code::NotFound if said.contains("lease not found") => {
            Fault { no_lease: true, ..refused(ErrorKind::Unavailable, "the session has ended") }
        }
        Code::Unauthenticated => Fault { stale_token: true, ..denied("the server does not accept who we said we are") },
        Code::InvalidArgument if said.contains("revision of auth store is old") => {
            Fault { stale_token: true, ..refused(ErrorKind::Unavailable, "the server's users have changed meanwhile") }
        }
        Code::InvalidArgument if said.contains("user name is empty") => {
            denied("the server wants a user name and password")
        }
        Code::InvalidArgument if said.contains("authentication failed") || said.contains("password") => {
            denied("the server refused the user name or password")
        }
        Code::FailedPrecondition if said.contains("authentication is not enabled") => {
            refused(ErrorKind::InvalidInput, "the server knows no users: leave out user name and password")
        }
        Code::PermissionDenied => Fault {
            forbidden: true,
            ..denied("the user has no rights on the keys of this lock: see the least rights in the docs")
        },
        Code::ResourceExhausted if said.contains("etcdserver") => {
            refused(ErrorKind::Unavailable, "the server takes no more: it is full, or busy")
        }
        Code::Unimplemented => {
            refused(ErrorKind::Unsupported, "the server does not know what locks need: etcd 3.4 does")
        }
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition | Code::NotFound => {
            refused(ErrorKind::Broken, "the server refused a request")
        }
        // No leader, a leader that has just changed, a connection that broke: it may have been carried out.
        _ => {
            let error = Error::unknown(format!("{address} did not answer")).caused_by(said);
            Fault { elsewhere: true, ..error.into() }
        }
    }
}
