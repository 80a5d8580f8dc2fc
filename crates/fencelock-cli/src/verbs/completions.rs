//! `completions`: a script that teaches a shell our words.

use crate::args::{Cli, Completions};
use crate::output;
use clap::CommandFactory;

pub(crate) fn run(completions: Completions) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Cli::command(), "fencelock", &mut script);
    output::data(&String::from_utf8_lossy(&script));
    0
}
