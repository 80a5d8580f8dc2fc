//! Locks of other clients beside ours, held by those clients' own code: a small program around their library that does as it is told,
//! one order a line on its standard input, and answers with one line each:
//!
//! ```text
//! take LOCK             waits for the lock, says "in"
//! try LOCK              says "in" or "held"
//! leave                 releases what was taken last, says "out"
//! count LOCK FILE N     N times: takes the lock, adds one to the number in the file, releases; says "counted"
//! ```
//!
//! `LOCK` is whatever words the program has for a lock. It says "ready" when it is connected.

use crate::waiting::until_waiting;
use fencelock::{ErrorKind, Locks};
use libtest_mimic::{Arguments, Trial};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A test that needs what was prepared: where the peer's program is.
pub type PeerTest = fn(&str);

/// Runs tests that need another client's program, as a test program's `main` does. If `prepare` says why there is none, they are
/// shown as ignored, with the reason.
pub fn main_beside(prepare: impl FnOnce() -> Result<String, String>, tests: &[(&str, PeerTest)]) {
    let arguments = Arguments::from_args();
    let wanted = !arguments.list;
    let peer = if wanted { prepare() } else { Err("only listed".into()) };
    let trial = |(name, test): &(&str, PeerTest)| match &peer {
        Ok(peer) => {
            let (peer, test) = (peer.clone(), *test);
            Trial::test(*name, move || {
                test(&peer);
                Ok(())
            })
        }
        Err(why) => Trial::test(*name, || Ok(())).with_kind(why.clone()).with_ignored_flag(wanted),
    };
    libtest_mimic::run(&arguments, tests.iter().map(trial).collect()).exit();
}

/// Runs something that gets or builds the peer, and says nothing of it but why it failed.
///
/// # Errors
/// The program is not there, or failed.
pub fn quietly(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.map_err(|_| format!("no {program}"))?.success().then_some(()).ok_or(format!("{program} failed"))
}

/// How often something is done: a few times, or twenty in a soak.
#[must_use]
pub fn peer_rounds() -> usize {
    if std::env::var_os("FENCELOCK_SOAK").is_some_and(|soak| soak == "1") { 20 } else { 3 }
}

/// The other client's program; ends when it is dropped.
pub struct Peer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts it and waits until it is connected.
    ///
    /// # Panics
    /// It cannot be started, or says something else than "ready".
    #[must_use]
    pub fn start(command: &mut Command) -> Peer {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the peer can be run");
        let orders = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut peer = Peer { child, orders, answers };
        assert_eq!(peer.answer(), "ready");
        peer
    }

    /// Gives an order and does not wait for the answer.
    ///
    /// # Panics
    /// It has ended.
    pub fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").and_then(|()| self.orders.flush()).expect("the peer listens");
    }

    /// The answer to the oldest order that was not answered.
    ///
    /// # Panics
    /// What it says is no text.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the peer speaks");
        line.trim().to_string()
    }

    /// Gives an order and waits for the answer.
    pub fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The mutex of the peer and ours, called `theirs` there and `ours` here, exclude each other, both ways, and wait for each other, with
/// tokens that grow over both.
///
/// # Panics
/// They do not.
pub async fn exclude_each_other(peer: &mut Peer, theirs: &str, locks: &Locks, ours: &str) {
    let (mut last, mut overlaps) = (0, 0);
    for _ in 0..peer_rounds() {
        // Theirs holds, ours waits.
        assert_eq!(peer.ask(&format!("take {theirs}")), "in");
        let error = locks.mutex(ours).try_lock().await.expect_err("theirs holds it");
        assert_eq!(error.kind(), ErrorKind::Held, "{error}");
        let their_token = error.holder().and_then(|holder| holder.token).expect("its number");
        let mutex = locks.mutex(ours);
        let waiting = tokio::spawn(async move { mutex.lock().await.expect("lock") });
        until_waiting(locks, ours, 1).await;
        overlaps += usize::from(waiting.is_finished());
        assert_eq!(peer.ask("leave"), "out");
        let guard = tokio::time::timeout(LONG, waiting).await.expect("the hand-over to us").expect("no panic");
        // Ours holds, theirs waits.
        assert_eq!(peer.ask(&format!("try {theirs}")), "held");
        peer.order(&format!("take {theirs}"));
        until_waiting(locks, ours, 1).await;
        let our_token = guard.token().number();
        assert!(last < their_token && their_token < our_token, "they grow: {last} {their_token} {our_token}");
        last = our_token;
        guard.release().await.expect("release");
        assert_eq!(peer.answer(), "in");
        overlaps += usize::from(locks.mutex(ours).try_lock().await.is_ok());
        assert_eq!(peer.ask("leave"), "out");
    }
    println!("counted: {theirs}: {} rounds each way, {overlaps} overlaps", peer_rounds());
    assert_eq!(overlaps, 0, "two at a time");
}

/// The peer and three tasks of ours add one to a number in a file, `each` times, without any other protection: an overlap would lose
/// one. `lock` is called with our name and gives a future of something that is released by it.
///
/// # Panics
/// One was lost.
pub async fn add_up<G, L, R>(
    peer: &mut Peer,
    theirs: &str,
    each: usize,
    lock: impl Fn() -> L + Clone + Send + 'static,
    release: impl Fn(G) -> R + Clone + Send + 'static,
) where
    G: Send,
    L: Future<Output = G> + Send,
    R: Future<Output = ()> + Send,
{
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = Arc::new(folder.path().join("number"));
    std::fs::write(&*file, "0").expect("our own file");
    peer.order(&format!("count {theirs} {} {each}", file.display()));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let (file, lock, release) = (file.clone(), lock.clone(), release.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..each {
                let guard = lock().await;
                std::fs::write(&*file, (number_in(&file) + 1).to_string()).expect("our own file");
                release(guard).await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(peer.answer(), "counted");
    assert_eq!(number_in(&file), 4 * each, "{theirs}: an overlap lost some");
}

fn number_in(file: &Path) -> usize {
    std::fs::read_to_string(file).expect("there").trim().parse().expect("a number")
}
