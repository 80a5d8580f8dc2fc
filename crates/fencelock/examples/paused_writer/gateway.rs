//! A small client of etcd, by the JSON that its servers speak beside gRPC: a transaction behind a fence, and a read. With a
//! client of your own the same conditions and operations go into its transaction.

use base64::{Engine, prelude::BASE64_STANDARD};
use fencelock::fence::etcd::{Access, Range};
use fencelock::{Error, ErrorKind, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One server: `host:port`.
#[derive(Clone, Debug)]
pub(crate) struct Gateway(pub(crate) String);

impl Gateway {
    /// Puts a value if the fence accepts the access, in one transaction. One round trip.
    pub(crate) async fn put(&self, access: &Access, key: &str, value: &str) -> Result<()> {
        let compare: Vec<Value> = access.empty.iter().map(empty).collect();
        let mut success = vec![put(&access.put, ""), put(key, value)];
        success.extend(access.delete.iter().map(|range| json!({ "request_delete_range": spelled(range) })));
        let mut look = spelled(&access.look);
        look["keys_only"] = true.into();
        let failure = json!([{ "request_range": look }]);
        let answer = self.ask("txn", &json!({ "compare": compare, "success": success, "failure": failure })).await?;
        if answer["succeeded"] == true {
            return Ok(());
        }
        let found = answer["responses"][0]["response_range"]["kvs"].as_array().cloned().unwrap_or_default();
        let keys = found.iter().map(|kv| BASE64_STANDARD.decode(kv["key"].as_str().unwrap_or_default()));
        let keys: Vec<Vec<u8>> = keys.collect::<std::result::Result<_, _>>().map_err(failed)?;
        match access.overtaken(keys) {
            Some(overtaken) => Err(overtaken.into()),
            None => Err(Error::new(ErrorKind::Denied, format!("the transaction was refused: {answer}"))),
        }
    }

    /// What is in a range, keys and versions.
    #[allow(dead_code, reason = "the test wants to see; the example does not")]
    pub(crate) async fn list(&self, from: &str, to: &str) -> Result<Vec<(String, u64)>> {
        let answer = self.ask("range", &json!({ "key": base(from), "range_end": base(to) })).await?;
        let found = answer["kvs"].as_array().cloned().unwrap_or_default();
        let read = |kv: &Value| {
            let key = BASE64_STANDARD.decode(kv["key"].as_str()?).ok()?;
            Some((String::from_utf8(key).ok()?, kv["version"].as_str()?.parse().ok()?))
        };
        Ok(found.iter().filter_map(read).collect())
    }

    async fn ask(&self, what: &str, question: &Value) -> Result<Value> {
        let body = question.to_string();
        let Gateway(address) = self;
        let head = format!("POST /v3/kv/{what} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.write_all((head + &body).as_bytes()).await.map_err(failed)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map_err(failed)?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.contains(" 200 ") => serde_json::from_str(body).map_err(failed),
            _ => Err(failed(answer)),
        }
    }
}

fn base(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

fn spelled(range: &Range) -> Value {
    json!({ "key": base(&range.from), "range_end": base(&range.to) })
}

/// There is no key in this range: each that there is would have to have been made in revision 0.
fn empty(range: &Range) -> Value {
    let mut compare = spelled(range);
    compare["target"] = "CREATE".into();
    compare["result"] = "EQUAL".into();
    compare["create_revision"] = "0".into();
    compare
}

fn put(key: &str, value: &str) -> Value {
    json!({ "request_put": { "key": base(key), "value": base(value) } })
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Unavailable, "etcd could not be asked").caused_by(error)
}
