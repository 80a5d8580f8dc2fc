//! `cargo xtask`: the project's chores. This file reads the arguments; each chore has a file of its own.

mod again;
mod build;
mod check;
mod mutants;
mod proto;
mod report;
mod run;
mod side;
mod soak;
mod table;
mod test;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// What went wrong, said to the person who called.
type Result<T, E = String> = std::result::Result<T, E>;

const USAGE: &str = "\
cargo xtask test [--no-install] [--strict] [FILTER]   install what is missing, run every test, say what ran where;
                                                      a test that fails must pass alone three times (not with --strict)
cargo xtask soak [--rounds N | --minutes M] [FILTER]  run the tests again and again until one fails (10 rounds)
cargo xtask mutants [--list] [NAME...]                plant each known bug and see its test go red
cargo xtask check                                     lock file, format, clippy, docs, every feature by itself
cargo xtask ci [--no-install]                         check, then test
cargo xtask proto                                     make the etcd store's messages of their description

FILTER is a part of a test's name; for soak also of a suite's. Each command ends with 0 only if all went well.";

/// What the person asked for.
#[derive(Debug, PartialEq)]
enum Chore {
    Test { install: bool, strict: bool, filter: Option<String> },
    Soak { until: soak::Until, filter: Option<String> },
    Mutants { list: bool, names: Vec<String> },
    Check,
    Ci { install: bool },
    Proto,
    Help,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let chore = match parse(&args) {
        Ok(chore) => chore,
        Err(message) => {
            eprintln!("xtask: {message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let all_well = match chore {
        Chore::Test { install, strict, filter } => test::test(install, strict, filter.as_deref()),
        Chore::Soak { until, filter } => soak::soak(until, filter.as_deref()),
        Chore::Mutants { list: true, .. } => mutants::list(),
        Chore::Mutants { list: false, names } => mutants::mutants(&names),
        Chore::Check => check::check(),
        Chore::Ci { install } => check::check().and_then(|checked| Ok(test::test(install, false, None)? && checked)),
        Chore::Proto => proto::proto(),
        Chore::Help => {
            println!("{USAGE}");
            Ok(true)
        }
    };
    match all_well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[String]) -> Result<Chore> {
    let mut words: Vec<String> = Vec::new();
    let (mut install, mut strict, mut list, mut until) = (true, false, false, None);
    let mut args = args.iter();
    let command = args.next().map(String::as_str);
    while let Some(arg) = args.next() {
        let mut number = || -> Result<u64> {
            let value = args.next().ok_or(format!("{arg} needs a number"))?;
            value.parse().ok().filter(|n| *n > 0).ok_or(format!("{arg} needs a number above zero, not {value:?}"))
        };
        match (command, arg.as_str()) {
            (Some("test" | "ci"), "--no-install") => install = false,
            (Some("test"), "--strict") => strict = true,
            (Some("soak"), "--rounds") if until.is_none() => until = Some(soak::Until::Rounds(number()?)),
            (Some("soak"), "--minutes") if until.is_none() => {
                until = Some(soak::Until::Time(Duration::from_secs(number()?.saturating_mul(60))));
            }
            (Some("mutants"), "--list") => list = true,
            (_, "-h" | "--help") => return Ok(Chore::Help),
            (_, flag) if flag.starts_with('-') => return Err(format!("{flag} makes no sense here")),
            (Some("test" | "soak"), _) if words.is_empty() => words.push(arg.clone()),
            (Some("mutants"), _) => words.push(arg.clone()),
            (_, word) => return Err(format!("{word:?} is one word too many")),
        }
    }
    Ok(match command {
        Some("test") => Chore::Test { install, strict, filter: words.pop() },
        Some("soak") => Chore::Soak { until: until.unwrap_or(soak::Until::Rounds(10)), filter: words.pop() },
        Some("mutants") => Chore::Mutants { list, names: words },
        Some("check") => Chore::Check,
        Some("ci") => Chore::Ci { install },
        Some("proto") => Chore::Proto,
        None | Some("-h" | "--help" | "help") => Chore::Help,
        Some(other) => return Err(format!("there is no chore {other:?}")),
    })
}

/// The workspace's folder.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask is a folder of the workspace").to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Chore> {
        parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_mean_what_the_usage_says() {
        assert_eq!(words("test"), Ok(Chore::Test { install: true, strict: false, filter: None }));
        assert_eq!(
            words("test --no-install --strict fair"),
            Ok(Chore::Test { install: false, strict: true, filter: Some("fair".into()) })
        );
        assert_eq!(words("soak"), Ok(Chore::Soak { until: soak::Until::Rounds(10), filter: None }));
        assert_eq!(
            words("soak --minutes 3 memory"),
            Ok(Chore::Soak { until: soak::Until::Time(Duration::from_secs(180)), filter: Some("memory".into()) })
        );
        assert_eq!(words("mutants a b"), Ok(Chore::Mutants { list: false, names: vec!["a".into(), "b".into()] }));
        assert_eq!(words("proto"), Ok(Chore::Proto));
        assert_eq!(words("ci --no-install"), Ok(Chore::Ci { install: false }));
        assert_eq!(words(""), Ok(Chore::Help));
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for line in [
            "tset",
            "test a b",
            "test --quick",
            "soak --rounds",
            "soak --rounds 0",
            "soak --rounds x",
            "soak --rounds 1 --minutes 1",
            "check fast",
            "check --no-install",
        ] {
            assert!(words(line).is_err(), "{line}");
        }
    }
}
