//! Runs a test program under a server. The suite ends its process without dropping anything, so the server belongs to another
//! one: this program, started once more.

use std::process::Command;

/// In the inner process: the URL that the outer one has told. In the outer one it does not return.
pub(crate) fn a_server<S>(start: impl FnOnce() -> (S, String)) -> String {
    if let Ok(url) = std::env::var("FENCELOCK_UNDER") {
        return url;
    }
    let (server, url) = start();
    let program = std::env::current_exe().expect("this program");
    let ended = Command::new(program).args(std::env::args_os().skip(1)).env("FENCELOCK_UNDER", url).status();
    drop(server);
    std::process::exit(ended.ok().and_then(|status| status.code()).unwrap_or(101));
}
