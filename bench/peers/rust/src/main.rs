//! The Rust peers, in the words of `bench/README.md`: `PROGRAM IMPL ADDR WORKLOAD key=value...`. The loops are those that measure our own locks.

#[path = "../../../src/worker/mod.rs"]
mod worker;

mod impls;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match worker::work(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}\n{}", worker::WORKLOADS);
            ExitCode::FAILURE
        }
    }
}
