//! Drives a headless Chromium over its DevTools protocol: one page, commands and their answers, and what it tells of by itself.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// No answer takes this long on a healthy machine, busy or not.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page.
pub(crate) struct Browser {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    session: Option<String>,
    next: u64,
    /// Requests by their number, until their status is known.
    asked: HashMap<String, String>,
    /// What came over the network, by address and status as the server sent it.
    pub(crate) seen: Vec<(String, u64)>,
    /// Errors of the console.
    pub(crate) complaints: Vec<String>,
    _child: Child,
    _profile: tempfile::TempDir,
}

/// Where it is, if it is anywhere.
pub(crate) fn found() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("FENCELOCK_CHROMIUM") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .flat_map(|folder| ["chromium", "chromium-browser"].map(|name| folder.join(name)))
        .find(|program| program.is_file())
}

impl Browser {
    /// Starts one with a fresh profile and opens an empty page.
    pub(crate) async fn start(program: &Path) -> Result<Browser, String> {
        let text = |error: std::io::Error| error.to_string();
        let profile = tempfile::tempdir().map_err(text)?;
        let mut child = Command::new(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"])
            .args(["--remote-debugging-port=0", "--hide-scrollbars", "about:blank"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(text)?;
        let mut lines = BufReader::new(child.stderr.take().ok_or("no pipe")?).lines();
        let address = loop {
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.map_err(|_| "Chromium says nothing")?;
            let line = line.map_err(text)?.ok_or("Chromium has ended")?;
            if let Some(address) = line.strip_prefix("DevTools listening on ") {
                break address.trim().to_string();
            }
        };
        // It goes on talking, and must not be kept waiting for a reader.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let (socket, _) = tokio_tungstenite::connect_async(&address).await.map_err(|error| error.to_string())?;
        let mut browser = Browser {
            socket,
            session: None,
            next: 0,
            asked: HashMap::new(),
            seen: Vec::new(),
            complaints: Vec::new(),
            _child: child,
            _profile: profile,
        };
        let target = browser.command("Target.createTarget", json!({ "url": "about:blank" })).await?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.command("Target.attachToTarget", attach).await?;
        browser.session = session["sessionId"].as_str().map(String::from);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.command(&format!("{domain}.enable"), json!({})).await?;
        }
        Ok(browser)
    }

    /// Sends a command and gives its result; whatever comes before that is noted.
    pub(crate) async fn command(&mut self, method: &str, params: Value) -> Result<Value, String> {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.socket.send(Message::text(message.to_string())).await.map_err(|error| error.to_string())?;
        loop {
            let next = tokio::time::timeout(PATIENCE, self.socket.next()).await;
            let next = next.map_err(|_| format!("no answer to {method}"))?.ok_or("the browser has ended")?;
            let Message::Text(text) = next.map_err(|error| error.to_string())? else { continue };
            let mut message: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            if message["id"] == self.next {
                return match message.get("error") {
                    None => Ok(message["result"].take()),
                    Some(error) => Err(format!("{method}: {error}")),
                };
            }
            self.note(&message);
        }
    }

    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        let id = params["requestId"].as_str().unwrap_or_default().to_string();
        match message["method"].as_str().unwrap_or_default() {
            "Network.requestWillBeSent" => {
                let url = params["request"]["url"].as_str().unwrap_or_default();
                self.asked.insert(id, url.to_string());
            }
            // What the server has sent, not what the cache makes of it.
            "Network.responseReceivedExtraInfo" => {
                let url = self.asked.get(&id).cloned().unwrap_or_default();
                self.seen.push((url, params["statusCode"].as_u64().unwrap_or(0)));
            }
            "Runtime.exceptionThrown" => self.complaints.push(params["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled" if params["type"] == "error" => self.complaints.push(params["args"].to_string()),
            "Log.entryAdded" if params["entry"]["level"] == "error" => {
                self.complaints.push(params["entry"].to_string())
            }
            _ => {}
        }
    }

    /// What an expression gives, as text.
    pub(crate) async fn evaluate(&mut self, expression: &str) -> Result<String, String> {
        let result =
            self.command("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true })).await?;
        if let Some(thrown) = result.get("exceptionDetails") {
            return Err(format!("{expression}: {thrown}"));
        }
        let value = &result["result"]["value"];
        Ok(value.as_str().map_or_else(|| value.to_string(), String::from))
    }

    /// Presses the mouse in the middle of an element.
    pub(crate) async fn click(&mut self, selector: &str) -> Result<(), String> {
        let expression = format!(
            "(() => {{ const e = document.querySelector('{selector}'); e.scrollIntoView({{ block: 'center' }}); \
             const r = e.getBoundingClientRect(); return `${{r.x + r.width / 2}} ${{r.y + r.height / 2}}`; }})()"
        );
        let at = self.evaluate(&expression).await?;
        let (x, y) = at.split_once(' ').ok_or("no place")?;
        let (x, y): (f64, f64) = (x.parse().map_err(|_| "no x")?, y.parse().map_err(|_| "no y")?);
        for kind in ["mousePressed", "mouseReleased"] {
            let params = json!({ "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1 });
            self.command("Input.dispatchMouseEvent", params).await?;
        }
        Ok(())
    }

    /// Leaves a picture of the whole page, so wide and in that colour scheme.
    pub(crate) async fn picture(&mut self, file: &Path, width: u32, scheme: &str) -> Result<(), String> {
        let metrics = json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.command("Emulation.setDeviceMetricsOverride", metrics).await?;
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.command("Emulation.setEmulatedMedia", media).await?;
        // Drawn anew for the new width.
        self.evaluate("draw(state)").await?;
        let taken =
            self.command("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": true })).await?;
        let bytes = decode(taken["data"].as_str().unwrap_or_default());
        self.command("Emulation.clearDeviceMetricsOverride", json!({})).await?;
        std::fs::write(file, bytes).map_err(|error| error.to_string())
    }
}

/// Base 64.
fn decode(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for six in text.bytes().filter_map(value) {
        (bits, count) = (bits << 6 | u32::from(six), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    bytes
}
