//! The suite of the fence: what every checker of fencing tokens must say, whatever it keeps its marks in.
//!
//! A checker of your own implements [`Checker`] and is handed to [`check_fence`], which lists what it gets wrong.

use fencelock::fence::Marks;
use fencelock::store::{BoxFuture, Mode};
use fencelock::{ErrorKind, Result, Token};
use std::collections::HashMap;

/// A resource behind a fence.
pub trait Checker: Send {
    /// One access with this token.
    fn access<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>>;

    /// The resource's process ends and another one takes over: what it has accepted is still known.
    fn restart(&mut self) -> BoxFuture<'_, ()>;
}

/// One access, and whether it must be accepted.
struct Step {
    token: Token,
    accepted: bool,
}

fn ex(number: u64, accepted: bool) -> Step {
    at("a", "redis", number, Mode::Exclusive, accepted)
}

fn sh(number: u64, accepted: bool) -> Step {
    at("a", "redis", number, Mode::Shared, accepted)
}

fn at(name: &str, label: &str, number: u64, mode: Mode, accepted: bool) -> Step {
    Step { token: Token::from_parts(number, mode, name, label).expect("not a permit's"), accepted }
}

/// Runs every case, each with names of its own, and says which ones came out wrong: none, for a fence that holds.
pub async fn check_fence(checker: &mut dyn Checker) -> Vec<String> {
    let mut wrong = Vec::new();
    let cases = [
        ("33 after 34", vec![ex(34, true), ex(33, false), ex(34, true), ex(35, true), ex(34, false)]),
        // 5 has the lock, is paused and loses it; 6 reads; 5 wakes up and writes.
        ("a paused writer under live readers", vec![ex(5, true), sh(6, true), ex(5, false), sh(6, true), ex(7, true)]),
        ("a paused reader behind a writer", vec![sh(5, true), ex(6, true), sh(5, false), sh(7, true)]),
        ("shared beside shared", vec![sh(8, true), sh(6, true), sh(7, true), sh(8, true), ex(7, false), ex(9, true)]),
        ("a downgraded writer among readers", vec![ex(5, true), sh(5, true), sh(6, true), sh(5, true), ex(5, false)]),
        (
            "two names",
            vec![
                ex(34, true),
                at("b", "redis", 33, Mode::Exclusive, true),
                ex(33, false),
                at("A", "redis", 1, Mode::Exclusive, true),
            ],
        ),
        (
            "two stores",
            vec![
                at("a", "redis", 1_790_000_000_000_000, Mode::Exclusive, true),
                at("a", "etcd", 100_000, Mode::Exclusive, true),
                at("a", "etcd", 99_999, Mode::Exclusive, false),
                at("a", "redis", 1_789_999_999_999_999, Mode::Shared, false),
            ],
        ),
        (
            "numbers beyond 2^53",
            vec![
                ex((1 << 53) + 1, true),
                ex(1 << 53, false),
                sh(1 << 53, false),
                ex(i64::MAX as u64, true),
                ex(i64::MAX as u64 - 1, false),
                ex(9, false),
            ],
        ),
    ];
    for (i, (case, steps)) in cases.into_iter().enumerate() {
        wrong.extend(run(checker, &format!("c{i}."), case, &steps).await);
    }
    wrong.extend(a_restart(checker).await);
    wrong.extend(garbage(checker).await);
    wrong.extend(at_random(checker).await);
    wrong
}

/// Tells cases apart by what their names begin with.
fn named(prefix: &str, token: &Token) -> Token {
    let name = format!("{prefix}{}", token.name());
    Token::from_parts(token.number(), token.mode(), &name, token.label()).expect("not a permit's")
}

async fn run(checker: &mut dyn Checker, prefix: &str, case: &str, steps: &[Step]) -> Option<String> {
    for (i, step) in steps.iter().enumerate() {
        let token = named(prefix, &step.token);
        let said = checker.access(&token).await.map_err(|error| error.kind());
        let right = if step.accepted { Ok(()) } else { Err(ErrorKind::Overtaken) };
        if said != right {
            return Some(format!("{case}: access {i} with {token:?}: {said:?} instead of {right:?}"));
        }
    }
    None
}

async fn a_restart(checker: &mut dyn Checker) -> Option<String> {
    let before = run(checker, "r.", "a restart", &[ex(34, true), sh(40, true)]).await;
    checker.restart().await;
    let after = [ex(33, false), ex(34, false), ex(39, false), sh(33, false), sh(34, true), ex(40, true)];
    match before {
        Some(wrong) => Some(wrong),
        None => run(checker, "r.", "a restart", &after).await,
    }
}

/// What no store can have given is refused as such, and leaves no mark.
async fn garbage(checker: &mut dyn Checker) -> Option<String> {
    let long = "x".repeat(4000);
    let tokens = [
        (0, "g.a", "redis"),
        (u64::MAX, "g.a", "redis"),
        (1 << 63, "g.a", "redis"),
        (7, "", "redis"),
        (7, "g.a", ""),
        (7, "g.a b", "redis"),
        (7, "g.ä", "redis"),
        (7, "g.a\0", "redis"),
        (7, &long, "redis"),
        (7, "g.a", &long),
    ];
    for (number, name, label) in tokens {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let token = Token::from_parts(number, mode, name, label).expect("not a permit's");
            match checker.access(&token).await {
                Err(error) if error.kind() == ErrorKind::InvalidInput => {}
                said => return Some(format!("garbage tokens: {number} of {name:.10?} on {label:.10?}: {said:?}")),
            }
        }
    }
    run(checker, "g.", "garbage tokens", &[ex(1, true)]).await
}

/// Many accesses to few names, compared with the rule itself.
async fn at_random(checker: &mut dyn Checker) -> Option<String> {
    let mut marks: HashMap<(String, String), Marks> = HashMap::new();
    for _ in 0..400 {
        let mode = if fastrand::bool() { Mode::Exclusive } else { Mode::Shared };
        let (name, label) = (["x", "y"][fastrand::usize(..2)], ["redis", "etcd"][fastrand::usize(..2)]);
        let number = 1 + fastrand::u64(..30) + marks.len() as u64;
        let token = Token::from_parts(number, mode, &format!("n{}.{name}", fastrand::u8(..9)), label)?;
        let right = marks.entry((token.name().into(), label.into())).or_default().accept(&token).is_ok();
        match checker.access(&token).await {
            Ok(()) if right => {}
            Err(error) if !right && error.kind() == ErrorKind::Overtaken => {}
            said => return Some(format!("at random: {token:?}: {said:?}, and right is accepted = {right}")),
        }
    }
    None
}
