//! What the servers' refusals and the connection's failures mean: one clear error for each.

use crate::error::{Error, ErrorKind};
use zookeeper_client::Error as ZkError;

/// An error that came while connecting: nothing was asked for yet.
pub(super) fn connecting(error: ZkError, address: &str, tls: bool) -> Error {
    match error {
        ZkError::AuthFailed => denied(error),
        ZkError::BadArguments(_) => {
            Error::new(ErrorKind::InvalidInput, format!("cannot connect to {address}")).caused_by(error)
        }
        _ => {
            // The client does not tell which it was.
            let hint = if tls { " (or the certificates do not fit)" } else { "" };
            let message = format!("cannot connect to {address}: no server answered{hint}");
            Error::new(ErrorKind::Unavailable, message).caused_by(error)
        }
    }
}

/// An error that came instead of an answer. Unless a server itself refused, it may have been carried out.
pub(super) fn asking(error: ZkError, address: &str) -> Error {
    let unavailable = |message: &str| Error::new(ErrorKind::Unavailable, message.to_string());
    match error {
        ZkError::NoAuth | ZkError::AuthFailed | ZkError::InvalidAcl => denied(error),
        ZkError::BadArguments(_) => Error::new(ErrorKind::InvalidInput, "that cannot be asked").caused_by(error),
        ZkError::QuotaExceeded => unavailable("the server's quota for this path is used up"),
        ZkError::Throttled => unavailable("the server is too busy"),
        ZkError::NotReadOnly => unavailable("the server is cut off from the others and only reads"),
        ZkError::Unimplemented => {
            Error::new(ErrorKind::Unsupported, "the server is too old: ZooKeeper 3.6 is needed").caused_by(error)
        }
        ZkError::SessionExpired | ZkError::SessionMoved | ZkError::ClientClosed => {
            Error::unknown("the session has ended").caused_by(error)
        }
        ZkError::NoChildrenForEphemerals => {
            Error::new(ErrorKind::Broken, "this name lies below a ticket of another lock").caused_by(error)
        }
        _ => Error::unknown(format!("{address} did not answer")).caused_by(error),
    }
}

fn denied(error: ZkError) -> Error {
    let message = "the server's access rules forbid it: check the user and password, and who made the nodes";
    Error::new(ErrorKind::Denied, message).caused_by(error)
}

/// Whether a request that writes was answered by the leader, though with a refusal: that is as good a sign of life.
pub(super) fn is_answer(error: &ZkError) -> bool {
    matches!(error, ZkError::NoNode | ZkError::NoAuth | ZkError::BadVersion | ZkError::NodeExists | ZkError::NotEmpty)
}
