//! What the server's refusals and the connection's failures mean: one clear error for each.

use crate::error::{Error, ErrorKind};
use redis::{RedisError, ServerErrorKind};

/// An error that came while connecting: nothing was asked for yet.
pub(super) fn connecting(error: RedisError, address: &str) -> Error {
    match refusal(&error) {
        Some(refusal) => refusal,
        None if error.kind() == redis::ErrorKind::AuthenticationFailed => denied(&error),
        None if error.kind() == redis::ErrorKind::InvalidClientConfig => {
            Error::new(ErrorKind::InvalidInput, format!("cannot connect to {address}")).caused_by(error)
        }
        None => Error::new(ErrorKind::Unavailable, format!("cannot connect to {address}")).caused_by(error),
    }
}

/// An error that came instead of an answer. Unless the server itself refused, it may have been carried out.
pub(super) fn asking(error: RedisError, address: &str) -> Error {
    if let Some(refusal) = refusal(&error) {
        return refusal;
    }
    let what = if error.is_timeout() { "did not answer in time" } else { "did not answer" };
    Error::unknown(format!("{address} {what}")).caused_by(error)
}

fn denied(error: &RedisError) -> Error {
    let message = "the server refused the user name or password (or wants one)";
    Error::new(ErrorKind::Denied, message).caused_by(said(error))
}

/// What the server said, without where in a script.
fn said(error: &RedisError) -> String {
    let detail = error.detail().unwrap_or_default();
    let detail = detail.split(" script: ").next().unwrap_or_default();
    format!("{} {detail}", error.code().unwrap_or_default()).trim().to_string()
}

/// The meaning of an answer that is a refusal: nothing has changed. `None` for whatever is no answer.
fn refusal(error: &RedisError) -> Option<Error> {
    let code = error.code()?;
    let detail = error.detail().unwrap_or_default();
    let temporary = |message: &str| Some(Error::new(ErrorKind::Unavailable, message).caused_by(said(error)));
    if let redis::ErrorKind::Server(kind) = error.kind() {
        match kind {
            ServerErrorKind::ReadOnly => {
                return temporary("the server is a read-only replica: name its master, or the sentinels");
            }
            ServerErrorKind::BusyLoading => return temporary("the server is still loading its data"),
            ServerErrorKind::NoPerm => {
                let message = "the server's access rules forbid what locks need: see the least rights in the docs";
                return Some(Error::new(ErrorKind::Denied, message).caused_by(said(error)));
            }
            _ => {}
        }
    }
    match code {
        "NOAUTH" | "WRONGPASS" => return Some(denied(error)),
        "BUSY" => return temporary("the server is busy with somebody's script"),
        "OOM" => return temporary("the server is out of memory"),
        "MISCONF" => return temporary("the server refuses to write"),
        "NOREPLICAS" => return temporary("the server has too few replicas to accept writes"),
        "MASTERDOWN" | "LOADING" => return temporary("the server is not ready"),
        "CLUSTERDOWN" => return temporary("the cluster is down: not all of its slots have a master"),
        "TRYAGAIN" => return temporary("the slot of this lock is being moved to another node"),
        "MOVED" | "ASK" | "CROSSSLOT" => {
            return temporary("the server is a node of a Redis Cluster: name it with redis+cluster://");
        }
        _ => {}
    }
    // A failing command inside a script comes back with the script's own prefix.
    let broken = |message: String| Some(Error::new(ErrorKind::Broken, message));
    if code == "WRONGTYPE" || detail.contains("WRONGTYPE") {
        return broken("a key of this lock holds something else: it is not ours, and is left alone".into());
    }
    let text = format!("{code} {detail}");
    if let Some((_, rest)) = text.split_once("FENCELOCK DAMAGED ") {
        return broken(format!("keys of this lock were removed or changed by hand: {}", first_clause(rest)));
    }
    if let Some((_, rest)) = text.split_once("FENCELOCK LAYOUT ") {
        let layout = first_clause(rest);
        return broken(format!("this lock is kept in layout {layout}, of another version; this one knows layout 1"));
    }
    if detail.contains("OOM command not allowed") || detail.contains("command not allowed when used memory") {
        return temporary("the server is out of memory");
    }
    if detail.contains("READONLY") {
        return temporary("the server is a read-only replica: name its master, or the sentinels");
    }
    if detail.contains("NOPERM")
        || detail.contains("ACL failure in script")
        || detail.contains("can't run this command")
    {
        let message = "the server's access rules forbid what locks need: see the least rights in the docs";
        return Some(Error::new(ErrorKind::Denied, message).caused_by(said(error)));
    }
    matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension)
        .then(|| Error::new(ErrorKind::Broken, "the server refused a script").effect_unknown().caused_by(said(error)))
}

/// Up to where the server goes on about the script.
fn first_clause(text: &str) -> &str {
    text.split(" script: ").next().unwrap_or(text).trim_end_matches([',', ' ', '.'])
}
