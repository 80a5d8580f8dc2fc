//! Wrong usage, help and bugs: what clap and a panic would say in many lines, said in one, with the codes of the contract.

use crate::args::Cli;
use crate::failure::{BUG, Failure};
use crate::output::{self, Output};
use crate::store_url::redact;
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The arguments, or the exit code of what was said instead.
pub(crate) fn parse() -> Result<Cli, u8> {
    Cli::try_parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::data(&error.render().to_string());
            0
        }
        _ => {
            let failure = Failure::usage(one_line(&error));
            Output::guess().failure(&failure);
            failure.code
        }
    })
}

/// clap's first paragraph on one line, and where to read more. What was typed in the wrong place may be a password.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "say what to do: run, hold, elect, limit, show, ls, watch, break, stores or completions; see `fencelock --help`"
            .into();
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let paragraph = text.split("\n\n").next().unwrap_or(text);
    let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    let tip = match error.get(ContextKind::SuggestedArg).or_else(|| error.get(ContextKind::SuggestedSubcommand)) {
        Some(ContextValue::String(one)) => format!("; did you mean {one}?"),
        Some(ContextValue::Strings(all)) if !all.is_empty() => format!("; did you mean {}?", all.join(" or ")),
        _ => String::new(),
    };
    let verb = verb().map_or_else(String::new, |verb| format!("{verb} "));
    format!("{}{tip}; see `fencelock {verb}--help`", redact(&line))
}

/// The verb that was typed, if it is one.
fn verb() -> Option<String> {
    use clap::CommandFactory;
    let typed = std::env::args().nth(1)?;
    Cli::command().find_subcommand(&typed).map(|command| command.get_name().to_string())
}

/// A panic anywhere is a bug of ours: one line, code 70. The kernel then ends the child.
pub(crate) fn end_with_a_line_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let text =
            payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let message = text.unwrap_or("no message");
        let place = panic.location().map_or_else(String::new, |place| format!(" at {}:{}", place.file(), place.line()));
        Output::guess()
            .failure(&Failure::bug(format!("this is a bug of fencelock, please report it: {message}{place}")));
        std::process::exit(i32::from(BUG));
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencelock::name::Name;
    use proptest::prelude::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn random_bytes_as_names_and_urls_never_panic(
            name in proptest::collection::vec(any::<u8>(), 0..40),
            url in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let (name, url) = (OsString::from_vec(name), OsString::from_vec(url));
            let args = [OsString::from("fencelock"), "--store".into(), url, "show".into(), name];
            match Cli::try_parse_from(args) {
                Ok(cli) => {
                    let crate::args::Verb::Show(show) = &cli.verb else { return Ok(()) };
                    if let Ok(choice) = crate::store_url::choose(&cli.global) {
                        prop_assert_eq!(choice.check_name(&show.name).is_ok(), Name::new(&choice.namespace, &show.name).is_ok());
                    }
                }
                Err(error) if error.use_stderr() => {
                    let line = one_line(&error);
                    prop_assert!(!line.is_empty() && !line.contains(char::is_control), "{:?}", line);
                }
                Err(_) => {}
            }
        }
    }

    #[test]
    fn random_urls_are_refused_in_words() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(10_000));
        // A file is the only thing that a URL can make here.
        let url =
            prop_oneof![any::<String>(), "memory:\\?\\PC{0,20}", "sqlite:a\\?x\\PC{0,20}", "[a-z]{1,8}:\\PC{0,20}"]
                .prop_filter("no file", |url| !url.starts_with("sqlite:") || url.contains("?x"));
        runner
            .run(&url, |url| {
                match runtime.block_on(fencelock::Locks::connect(&url)) {
                    Ok(locks) => prop_assert_eq!(locks.info().kind, "memory"),
                    Err(error) => prop_assert!(!Failure::connecting(error).message.contains(char::is_control)),
                }
                Ok(())
            })
            .unwrap();
    }
}
