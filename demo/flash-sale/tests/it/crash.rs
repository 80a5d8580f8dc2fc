//! What is left in the books after a crash, and after a customer who did not wait.

use crate::{at_once, program, rounds, together, whole};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
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

/// The write of somebody who has left goes on, and its lock with it.
#[test]
fn a_customer_who_leaves_does_not_open_the_door() {
    let _together = together();
    for strategy in ["process-lock", "lock", "striped"] {
        let words = ["shop", "--strategy", strategy, "--no-nginx", "--nodes", "1", "--stock", "1", "--work", "1500ms"];
        let mut shop = program(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it can be run");
        let mut line = String::new();
        BufReader::new(shop.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("it says where it is");
        let door = line.trim().trim_start_matches("open: http://").trim_end_matches("/stock/1").to_string();
        let ask = |what: &str| {
            let mut stream = TcpStream::connect(&door).expect("it is open");
            write!(stream, "{what} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                .expect("sent");
            stream
        };
        let read = |mut stream: TcpStream| {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            answer.rsplit("\r\n\r\n").next().unwrap_or_default().trim().to_string()
        };
        let first = ask("POST /stock/1/reduce");
        // It is inside by then, or on a very slow machine leaves before; the second one must not get a second piece either way.
        std::thread::sleep(Duration::from_millis(500));
        drop(first);
        let second = read(ask("POST /stock/1/reduce"));
        let left = read(ask("GET /stock/1"));
        shop.kill().and_then(|()| shop.wait()).expect("it runs");
        assert_eq!(left, "0", "{strategy}: the second was told {second}");
    }
}
