//! A network namespace of its own, for one server of several: its link to the others can be taken down while its clients still
//! reach it. Needs root and the program `ip`.

use crate::waiting::LONG;
use fencelock::{MutexGuard, State};
use libtest_mimic::{Arguments, Trial};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// A namespace with two links to here: one for the servers, one for clients. It goes when it is dropped.
pub struct Net {
    name: String,
    subnet: String,
}

/// Runs a test that needs a namespace, as a test program's `main` does. Where there can be none, it says so and runs nothing.
pub fn main_with_net(name: &str, test: impl FnOnce(&Net) + Send + 'static) {
    let arguments = Arguments::from_args();
    let Some(net) = Net::make() else {
        println!("not run: no network namespace can be made here (that needs root and ip)");
        return;
    };
    let net = Arc::new(net);
    let inside = net.clone();
    let trial = Trial::test(name, move || {
        test(&inside);
        Ok(())
    });
    let conclusion = libtest_mimic::run(&arguments, vec![trial]);
    // An exit drops nothing.
    drop(net);
    conclusion.exit();
}

fn ip(line: &str) -> bool {
    let run = Command::new("ip").args(line.split(' ')).stdout(Stdio::null()).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

impl Net {
    /// Takes the link down, and sees that who holds a lock there counts itself lost before the next one gets it here. How long each of
    /// them took.
    ///
    /// # Panics
    /// There are two at a time, or it takes a minute.
    pub async fn cut_off(&self, guard: &MutexGuard, next: JoinHandle<(MutexGuard, Instant)>) -> (Duration, Duration) {
        self.link("down");
        let cut = Instant::now();
        while guard.state() != State::Lost {
            assert!(cut.elapsed() < LONG, "it is never lost");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let lost = Instant::now();
        let next = tokio::time::timeout(LONG, next).await.expect("the others let the next one in");
        let (next, granted) = next.expect("no panic");
        assert!(lost <= granted, "two at a time, for {:?}", lost - granted);
        assert!(next.token() > guard.token());
        next.release().await.expect("release");
        (lost - cut, granted - cut)
    }

    /// A new one, if that can be.
    #[must_use]
    pub fn make() -> Option<Net> {
        let id = std::process::id();
        // Of a part of the private addresses that hardly anybody uses.
        let net = Net { name: format!("fencelock{id}"), subnet: format!("10.213.{}", id % 250) };
        let Net { name, subnet } = &net;
        let mut made = ip(&format!("netns add {name}")) && ip(&format!("-n {name} link set lo up"));
        for (link, here, there) in [("q", 1, 2), ("c", 5, 6)] {
            made = made
                && ip(&format!("link add {link}{id} type veth peer name {link} netns {name}"))
                && ip(&format!("addr add {subnet}.{here}/30 dev {link}{id}"))
                && ip(&format!("link set {link}{id} up"))
                && ip(&format!("-n {name} addr add {subnet}.{there}/30 dev {link}"))
                && ip(&format!("-n {name} link set {link} up"));
        }
        made.then_some(net)
    }

    /// Where servers outside of it are found by the one inside.
    #[must_use]
    pub fn near(&self) -> String {
        format!("{}.1", self.subnet)
    }

    /// Where the server inside is found by the others.
    #[must_use]
    pub fn far(&self) -> String {
        format!("{}.2", self.subnet)
    }

    /// Where the server inside is found by clients.
    #[must_use]
    pub fn for_clients(&self) -> String {
        format!("{}.6", self.subnet)
    }

    /// What comes before a command that is to run inside.
    #[must_use]
    pub fn inside(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name].map(String::from).into()
    }

    /// Takes the link between the servers down, or up again. On its far side: here its address stays.
    ///
    /// # Panics
    /// It cannot be set.
    pub fn link(&self, state: &str) {
        assert!(ip(&format!("-n {} link set q {state}", self.name)), "the link could not be set {state}");
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // The links go with it.
        ip(&format!("netns del {}", self.name));
    }
}
