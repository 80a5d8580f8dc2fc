//! What is left in the books after a crash, and after a customer who did not wait.

use crate::{Running, at_once, rounds, together, whole};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Twenty times in a soak.
#[test]
fn both_nodes_are_killed_and_the_books_are_right() {
    let _together = together();
    let sale = ["sale", "--kill", "--stock", "1000", "--work", "0s", "--json", "--strategy"];
    let with = |words: &[&'static str]| sale.iter().chain(words).copied().collect::<Vec<&str>>();
    let servers = ["--start", "redis", "--start", "postgres"];
    let sales = [
        with(&["lock"]),
        with(&["for-update"]),
        with(&["none"]),
        with(&[&["lock"], &servers[..]].concat()),
        with(&[&["none"], &servers[..]].concat()),
    ];
    for round in 1..=rounds() {
        for (row, told) in at_once(&sales) {
            assert_eq!(whole(&row, "sold") + whole(&row, "stock_left"), 1000, "{told}");
            if row["strategy"] != "none" {
                assert_eq!((whole(&row, "sold"), &row["verdict"]), (1000, &Value::from("right")), "{told}");
            }
        }
        println!("counted: round {round}: {} sales with both nodes killed, orders + stock = 1000 in each", sales.len());
    }
}

/// The write of somebody who has left goes on, and its lock with it. The node is held up inside its critical section, so that
/// the customer leaves there and nowhere else.
#[test]
fn a_customer_who_leaves_does_not_open_the_door() {
    let _together = together();
    for strategy in ["process-lock", "lock", "striped"] {
        let folder = tempfile::tempdir().expect("a folder");
        let [db, store] = ["shop", "locks"].map(|file| format!("sqlite:{}", folder.path().join(file).display()));
        let common = ["--strategy", strategy, "--db", &db, "--store", &store, "--work", "0s"];
        // It makes the tables, and sells nothing.
        let shop = Running::start(&[&["shop", "--no-nginx", "--nodes", "1", "--stock", "1"], &common[..]].concat());
        let mut node = Running::start(&[&["node", "--name", "node", "--listen", "127.0.0.1:0"], &common[..]].concat());
        let door = node.first.trim_start_matches("ready ").to_string();
        node.say("arm inside");
        assert_eq!(node.hear(), "armed inside");
        let first = ask(&door, "POST /stock/1/reduce");
        assert_eq!(node.hear(), "at inside");
        drop(first);
        let mut second = ask(&door, "POST /stock/1/reduce");
        second.set_read_timeout(Some(Duration::from_millis(500))).expect("it can be set");
        let early = second.read(&mut [0; 1]);
        assert!(early.is_err(), "{strategy}: the door is open: {early:?}");
        second.set_read_timeout(None).expect("it can be set");
        node.say("go");
        assert_eq!(read(second), "sold out", "{strategy}");
        assert_eq!(read(ask(&door, "GET /stock/1")), "0", "{strategy}");
        drop(shop);
    }
}

fn ask(door: &str, what: &str) -> TcpStream {
    let mut stream = TcpStream::connect(door).expect("it is open");
    write!(stream, "{what} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").expect("sent");
    stream
}

fn read(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.rsplit("\r\n\r\n").next().unwrap_or_default().trim().to_string()
}
