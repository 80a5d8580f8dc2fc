//! The stage's page over HTTP: what a cache may keep, and what it must ask for.

use crate::program;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

/// A stage that is open; it ends with this.
struct Stage {
    child: Child,
    address: String,
    /// Its nodes, and nginx in front of them.
    shops: Vec<String>,
}

impl Stage {
    fn open(words: &[&str]) -> Stage {
        let mut child = program(&[&["--listen", "127.0.0.1:0"][..], words].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be run");
        let address = |line: &str| Some(line.trim().split_once("http://")?.1.to_string());
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("it says where it is");
        // What it says of the shop was said before that.
        let shops = BufReader::new(child.stderr.as_mut().expect("a pipe")).lines().take(3).map_while(Result::ok);
        let shops = shops.filter_map(|line| address(&line)).collect();
        Stage { child, address: address(&line).expect("an address"), shops }
    }

    fn get(&self, path: &str, header: &str) -> (u16, String, String) {
        get(&self.address, path, header)
    }
}

/// Status, head and body.
fn get(address: &str, path: &str, header: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n{header}\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, head.to_string(), body.to_string())
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let line = head.lines().find_map(|line| line.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name)));
    line.unwrap_or_else(|| panic!("no {name} in {head}")).1
}

#[test]
fn the_index_is_asked_for_and_the_assets_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["index.html", "style.css", "app.js"] {
        let from = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("page").join(file);
        std::fs::copy(from, folder.path().join(file)).expect("a copy");
    }
    let stage = Stage::open(&["--page", folder.path().to_str().expect("a path")]);
    let (status, head, body) = stage.get("/", "");
    assert_eq!((status, header(&head, "cache-control")), (200, "no-cache"));
    let tag = format!("If-None-Match: {}\r\n", header(&head, "etag"));
    let time = format!("If-Modified-Since: {}\r\n", header(&head, "last-modified"));
    assert_eq!(stage.get("/", &tag).0, 304);
    assert_eq!(stage.get("/index.html", &time).0, 304);

    let asset = body.split('"').find(|word| word.starts_with("/assets/app.")).expect("a script");
    let (status, head, _) = stage.get(asset, "");
    assert_eq!((status, header(&head, "cache-control")), (200, "public, max-age=31536000, immutable"));
    assert_eq!(stage.get("/assets/app.js", "").0, 404, "only under the name with the hash");

    std::fs::write(folder.path().join("app.js"), "'use strict';").expect("a change");
    let (status, _, changed) = stage.get("/", &tag);
    assert_eq!(status, 200, "it has changed");
    assert!(!changed.contains(asset), "and names another script");
}

#[test]
fn two_nodes_and_nginx_are_open_from_the_start() {
    let stage = Stage::open(&[]);
    assert_eq!(stage.shops.len(), 3, "{:?}", stage.shops);
    for shop in &stage.shops {
        let (status, _, body) = get(shop, "/stock/1", "");
        assert_eq!((status, body.trim()), (200, "100"), "{shop}");
    }
}
