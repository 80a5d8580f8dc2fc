//! The program from outside: real processes, real signals, a real terminal, the embedded store in a folder of its own.
#![cfg(target_os = "linux")]

mod codes;
mod exact;
mod help;
mod limit;
mod loss;
mod migrate;
mod odd_input;
mod output;
mod several;
mod signals;
mod support;
mod terminal;
