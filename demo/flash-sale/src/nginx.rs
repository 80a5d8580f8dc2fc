//! nginx in front of the nodes: round robin, and its two limiters.

use crate::Result;
use crate::args::Limits;
use crate::servers::GUARD;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

/// A running nginx; it ends with this, or with the program.
pub(crate) struct Nginx {
    _child: Child,
    pub(crate) address: SocketAddr,
}

/// Where it is, if it is anywhere.
pub(crate) fn found() -> Option<PathBuf> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&places).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.map(|place| place.join("nginx")).find(|path| path.is_file())
}

impl Nginx {
    /// Starts it in a folder of ours, with the nodes behind it; on a free port unless one is named.
    pub(crate) async fn start(
        folder: &Path,
        listen: Option<SocketAddr>,
        nodes: &[SocketAddr],
        limits: &Limits,
    ) -> Result<Nginx> {
        let program = found().ok_or("there is no nginx")?;
        for tried in 0..20 {
            let address = match TcpListener::bind(listen.unwrap_or(([127, 0, 0, 1], 0).into())) {
                Ok(listener) => listener.local_addr()?,
                // Its predecessor may be about to end.
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && tried < 19 => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                Err(error) => return Err(format!("nginx cannot listen: {error}").into()),
            };
            let file = folder.join("nginx.conf");
            std::fs::write(&file, config(&folder.display().to_string(), address, nodes, limits))?;
            let mut child = Command::new("sh")
                .args(["-c", GUARD, "sh"])
                .arg(&program)
                .arg("-c")
                .arg(&file)
                .arg("-p")
                .arg(folder)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            let limit = Instant::now() + Duration::from_secs(10);
            // Another process may have taken the port meanwhile: then ours ends.
            while child.try_wait()?.is_none() && Instant::now() < limit {
                if tokio::net::TcpStream::connect(address).await.is_ok() {
                    return Ok(Nginx { _child: child, address });
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Err(format!("nginx does not come up: {}", std::fs::read_to_string(folder.join("error.log"))?).into())
    }
}

/// A failed request is told to the customer: with nginx's own retries, one request could sell twice.
fn config(dir: &str, listen: SocketAddr, nodes: &[SocketAddr], limits: &Limits) -> String {
    let upstream: String = nodes.iter().map(|node| format!("server {node} max_fails=0; ")).collect();
    let (mut zones, mut rules) = (String::new(), String::new());
    if let Some(rate) = &limits.limit_req {
        let rate = rate.trim_end_matches("r/s").trim_end_matches("/s");
        let burst = if limits.burst > 0 { format!(" burst={}", limits.burst) } else { String::new() };
        let nodelay = if limits.nodelay { " nodelay" } else { "" };
        zones += &format!("limit_req_zone $binary_remote_addr zone=each:1m rate={rate}r/s;\n");
        rules += &format!("limit_req zone=each{burst}{nodelay}; limit_req_status 429;\n");
    }
    if let Some(most) = limits.conn_per_address {
        zones += "limit_conn_zone $binary_remote_addr zone=address:1m;\n";
        rules += &format!("limit_conn address {most};\n");
    }
    if let Some(most) = limits.conn_per_server {
        zones += "limit_conn_zone $server_name zone=all:1m;\n";
        rules += &format!("limit_conn all {most};\n");
    }
    if limits.conn_per_address.or(limits.conn_per_server).is_some() {
        rules += "limit_conn_status 429;\n";
    }
    let sorry = crate::node::SORRY.trim_end();
    format!(
        "daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log crit;
events {{ worker_connections 2048; }}
http {{
  access_log off; keepalive_requests 1000000;
  client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f;
  uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  {zones}
  upstream nodes {{ {upstream} keepalive 64; keepalive_requests 1000000; }}
  server {{
    listen {listen} backlog=1024; server_name shop;
    location / {{
      proxy_pass http://nodes; proxy_http_version 1.1; proxy_set_header Connection '';
      proxy_next_upstream off; proxy_read_timeout 120s; proxy_connect_timeout 5s;
    }}
    location ~ ^/stock/[0-9]+/reduce$ {{
      {rules}
      error_page 429 @sorry;
      proxy_pass http://nodes; proxy_http_version 1.1; proxy_set_header Connection '';
      proxy_next_upstream off; proxy_read_timeout 120s; proxy_connect_timeout 5s;
    }}
    location @sorry {{ default_type text/plain; return 429 '{sorry}\\n'; }}
  }}
}}
"
    )
}
