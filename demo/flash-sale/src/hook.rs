//! Where a node can be caught: the stage arms a point by a line on the node's standard input, the node says on its standard
//! output that it is armed, and later that it has got there, and waits for `go`. Then the stage freezes or kills the process, which cannot know.

use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// A place in the course of a sale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// Between the read and the write, under whatever lock there is.
    Inside,
    /// Behind a SETNX, and before the EXPIRE where there is one.
    AfterSetnx,
}

impl Point {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Point::Inside => "inside",
            Point::AfterSetnx => "after-setnx",
        }
    }
}

/// The node's side.
#[derive(Default)]
pub(crate) struct Hook {
    armed: Mutex<Option<Point>>,
    go: Notify,
}

impl Hook {
    /// Listens to the standard input; when that ends, the stage is gone, and so is the node.
    pub(crate) fn listen(self: &Arc<Hook>) {
        let hook = self.clone();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                let arm = |point: Point| {
                    *hook.armed.lock().unwrap_or_else(PoisonError::into_inner) = Some(point);
                    say("armed", point);
                };
                match line.trim() {
                    "arm inside" => arm(Point::Inside),
                    "arm after-setnx" => arm(Point::AfterSetnx),
                    "go" => hook.go.notify_one(),
                    _ => {}
                }
            }
            std::process::exit(0);
        });
    }

    /// Tells and waits, if this point is armed; only once.
    pub(crate) async fn at(&self, point: Point) {
        let caught = self.armed.lock().unwrap_or_else(PoisonError::into_inner).take_if(|armed| *armed == point);
        if caught.is_some_and(|point| say("at", point)) {
            self.go.notified().await;
        }
    }

    /// What a shop does between the read and the write.
    pub(crate) async fn work(&self, time: Duration) {
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
        self.at(Point::Inside).await;
    }
}

/// Tells the stage; whether it is there to hear it.
fn say(what: &str, point: Point) -> bool {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what} {}", point.word()).and_then(|()| out.flush()).is_ok()
}
