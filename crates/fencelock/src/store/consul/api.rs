//! Consul's HTTP interface, as much of it as locks need: sessions, transactions and reads that wait.

use super::settings::Settings;
use crate::error::{Error, ErrorKind, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Client, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Id;
use tokio::sync::Semaphore;

/// How long an answer may take. What is not answered by then may still be carried out.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// So many short calls are under way at a time: an agent takes 200 connections of one address unless it is told otherwise, and
/// those who wait need theirs.
const CALLS_AT_ONCE: usize = 48;
/// A transaction takes so many operations.
pub(super) const MOST_OPERATIONS: usize = 64;
/// What a path keeps as it is.
const IN_A_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/');

/// The agent, and one client for each runtime that has asked: connections are served by the runtime that opened them.
pub(super) struct Agent {
    settings: Settings,
    clients: Mutex<HashMap<Id, Client>>,
    calls: Semaphore,
}

/// A key and what is in it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Entry {
    pub(super) key: String,
    value: Option<String>,
    #[serde(default)]
    pub(super) flags: u64,
    pub(super) session: Option<String>,
    pub(super) create_index: u64,
    pub(super) modify_index: u64,
}

impl Entry {
    pub(super) fn value(&self) -> Vec<u8> {
        self.value.as_deref().and_then(|text| BASE64.decode(text).ok()).unwrap_or_default()
    }
}

/// One operation of a transaction.
pub(super) enum Operation<'a> {
    /// Makes the key, or writes to one that the session holds.
    Lock {
        key: &'a str,
        value: &'a [u8],
        session: &'a str,
        flags: u64,
    },
    /// Gives a key up that the session holds.
    Unlock {
        key: &'a str,
        session: &'a str,
    },
    /// Goes on only if the session holds the key.
    CheckSession {
        key: &'a str,
        session: &'a str,
    },
    /// Every key that begins so.
    GetTree(&'a str),
    Delete(&'a str),
    /// Only if nobody has written to it since.
    DeleteUnchanged {
        key: &'a str,
        index: u64,
    },
}

impl Operation<'_> {
    fn only_reads(&self) -> bool {
        matches!(self, Operation::CheckSession { .. } | Operation::GetTree(_))
    }

    fn json(&self) -> Value {
        let kv = match self {
            Operation::Lock { key, value, session, flags } => {
                json!({"Verb": "lock", "Key": key, "Value": BASE64.encode(value), "Session": session, "Flags": flags})
            }
            Operation::Unlock { key, session } => json!({"Verb": "unlock", "Key": key, "Session": session}),
            Operation::CheckSession { key, session } => {
                json!({"Verb": "check-session", "Key": key, "Session": session})
            }
            Operation::GetTree(key) => json!({"Verb": "get-tree", "Key": key}),
            Operation::Delete(key) => json!({"Verb": "delete", "Key": key}),
            Operation::DeleteUnchanged { key, index } => json!({"Verb": "delete-cas", "Key": key, "Index": index}),
        };
        json!({"KV": kv})
    }
}

/// What became of a transaction.
pub(super) enum Done {
    /// What its operations said, in their order.
    Well(Vec<Entry>),
    /// Nothing was done, and why.
    Refused(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    results: Option<Vec<Outcome>>,
    errors: Option<Vec<Trouble>>,
}

#[derive(Deserialize)]
struct Outcome {
    #[serde(rename = "KV")]
    kv: Option<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Trouble {
    what: String,
}

/// What a session is to be like.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) ttl: Duration,
    /// `delete`: its keys go with it. `release`: they stay, held by nobody.
    pub(super) behavior: &'a str,
    pub(super) lock_delay: Duration,
}

impl Agent {
    pub(super) fn new(settings: Settings) -> Agent {
        Agent { settings, clients: Mutex::default(), calls: Semaphore::new(CALLS_AT_ONCE) }
    }

    pub(super) fn address(&self) -> &str {
        &self.settings.address
    }

    /// The calling runtime's client.
    fn client(&self) -> Result<Client> {
        let here = tokio::runtime::Handle::try_current().map_err(|_| {
            Error::new(ErrorKind::Unsupported, "this store needs a tokio runtime (or the blocking interface)")
        })?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&here.id()) {
            return Ok(client.clone());
        }
        // Runtimes come and go in tests; their clients are of no use to anybody else.
        if clients.len() >= 64 {
            clients.clear();
        }
        let client = self.settings.client()?;
        clients.insert(here.id(), client.clone());
        Ok(client)
    }

    pub(super) fn forget_clients(&self) {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// One request. Answers that say that something is not there are answers.
    async fn ask(&self, method: Method, path: &str, body: Option<Value>, within: Duration) -> Result<Reply> {
        // A read that waits has a connection of its own for as long as nothing happens.
        let _turn = if within > ANSWER_WITHIN { None } else { self.calls.acquire().await.ok() };
        let mut request = self.client()?.request(method, format!("{}{path}", self.settings.base)).timeout(within);
        if let Some(token) = &self.settings.token {
            request = request.header("X-Consul-Token", token);
        }
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        let reply = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = reply.status();
        let index = reply.headers().get("X-Consul-Index").and_then(|index| index.to_str().ok()?.parse().ok());
        let body = reply.bytes().await.map_err(|error| self.unreachable(&error))?;
        if status.is_success() || matches!(status, StatusCode::NOT_FOUND | StatusCode::CONFLICT) {
            return Ok(Reply { status, index, body: body.to_vec() });
        }
        Err(self.refusal(status, &String::from_utf8_lossy(&body)))
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        // The innermost cause says it; the outer ones repeat the URL.
        let mut cause: &dyn std::error::Error = error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        let message = format!("no answer from {}: {cause}", self.address());
        let told = Error::new(ErrorKind::Unavailable, message);
        if error.is_connect() || error.is_builder() { told } else { told.effect_unknown() }
    }

    fn refusal(&self, status: StatusCode, body: &str) -> Error {
        let said: String = crate::name::printable(body.trim()).chars().take(200).collect();
        let (kind, message) = match status {
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
                let cure = "it needs a token with key:write on the names, key:read for listing, and session:write";
                (ErrorKind::Denied, format!("{} refused us ({said}): {cure}", self.address()))
            }
            StatusCode::TOO_MANY_REQUESTS => {
                (ErrorKind::Unavailable, format!("{} has too many connections", self.address()))
            }
            StatusCode::BAD_REQUEST => {
                (ErrorKind::InvalidInput, format!("{} did not understand: {said}", self.address()))
            }
            status if status.is_server_error() => {
                // An election, a leader that is gone: nobody knows what became of it.
                return Error::unknown(format!("{} cannot answer at the moment: {said}", self.address()));
            }
            status => (ErrorKind::Broken, format!("{} answered {status}: {said}", self.address())),
        };
        Error::new(kind, message)
    }

    /// All or nothing. One request.
    pub(super) async fn transaction(&self, operations: &[Operation<'_>]) -> Result<Done> {
        let body = Value::Array(operations.iter().map(Operation::json).collect());
        // One that only reads is answered by whoever leads for sure, not by who believes that it still does.
        let path = if operations.iter().all(Operation::only_reads) { "/v1/txn?consistent" } else { "/v1/txn" };
        let reply = self.ask(Method::PUT, path, Some(body), ANSWER_WITHIN).await?;
        let answer: Answer = serde_json::from_slice(&reply.body).map_err(|_| unreadable())?;
        let troubles: Vec<String> = answer.errors.unwrap_or_default().into_iter().map(|error| error.what).collect();
        match troubles.is_empty() && reply.status != StatusCode::CONFLICT {
            true => Ok(Done::Well(answer.results.unwrap_or_default().into_iter().filter_map(|one| one.kv).collect())),
            false if troubles.iter().any(|what| what.contains("Permission denied")) => {
                Err(self.refusal(StatusCode::FORBIDDEN, &troubles.join("; ")))
            }
            false => Ok(Done::Refused(troubles.join("; "))),
        }
    }

    /// Every key that begins so, and the index to wait from. With an index, the answer comes when something has changed
    /// since, or after `wait`. One request.
    pub(super) async fn tree(&self, prefix: &str, after: Option<(u64, Duration)>) -> Result<(Vec<Entry>, u64)> {
        let mut path = format!("/v1/kv/{}?recurse", utf8_percent_encode(prefix, IN_A_PATH));
        let mut within = ANSWER_WITHIN;
        match after {
            Some((index, wait)) => {
                path.push_str(&format!("&index={index}&wait={}ms", wait.as_millis()));
                // The server takes up to a sixteenth more.
                within = wait + wait / 8 + ANSWER_WITHIN;
            }
            None => path.push_str("&consistent"),
        }
        let reply = self.ask(Method::GET, &path, None, within).await?;
        let index = reply.index.unwrap_or(0);
        if reply.status == StatusCode::NOT_FOUND {
            return Ok((Vec::new(), index));
        }
        Ok((serde_json::from_slice(&reply.body).map_err(|_| unreadable())?, index))
    }

    /// One request. A time to live that the server does not take is an error that says what it takes.
    pub(super) async fn create_session(&self, wanted: &Wanted<'_>) -> Result<String> {
        #[derive(Deserialize)]
        struct Created {
            #[serde(rename = "ID")]
            id: String,
        }
        let body = json!({
            "Name": wanted.name,
            "TTL": format!("{}ms", wanted.ttl.as_millis()),
            "Behavior": wanted.behavior,
            "LockDelay": format!("{}ms", wanted.lock_delay.as_millis()),
            // No health check decides over a lock, only its lease.
            "Checks": [],
            "NodeChecks": [],
        });
        let reply = self.ask(Method::PUT, "/v1/session/create", Some(body), ANSWER_WITHIN).await?;
        serde_json::from_slice(&reply.body).map(|created: Created| created.id).map_err(|_| unreadable())
    }

    /// Whether it is still there. One request.
    pub(super) async fn renew_session(&self, id: &str) -> Result<bool> {
        let reply = self.ask(Method::PUT, &format!("/v1/session/renew/{id}"), None, ANSWER_WITHIN).await?;
        Ok(reply.status != StatusCode::NOT_FOUND)
    }

    /// One request.
    pub(super) async fn destroy_session(&self, id: &str) -> Result<()> {
        self.ask(Method::PUT, &format!("/v1/session/destroy/{id}"), None, ANSWER_WITHIN).await.map(drop)
    }

    /// Whether it is there, and the index to wait from; waits for a change like [`tree`](Self::tree). One request.
    pub(super) async fn session(&self, id: &str, index: u64, wait: Duration) -> Result<(bool, u64)> {
        let path = format!("/v1/session/info/{id}?index={index}&wait={}ms", wait.as_millis());
        let reply = self.ask(Method::GET, &path, None, wait + wait / 8 + ANSWER_WITHIN).await?;
        let found: Option<Vec<Value>> = serde_json::from_slice(&reply.body).map_err(|_| unreadable())?;
        Ok((found.is_some_and(|found| !found.is_empty()), reply.index.unwrap_or(0)))
    }
}

struct Reply {
    status: StatusCode,
    index: Option<u64>,
    body: Vec<u8>,
}

pub(super) fn unreadable() -> Error {
    Error::new(ErrorKind::Broken, "the server's answer cannot be read").effect_unknown()
}
