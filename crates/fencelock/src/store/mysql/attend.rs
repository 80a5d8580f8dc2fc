//! The client's own work, on the library thread: nothing is told here, so it looks for all who wait in this process at once,
//! and for what is watched; and it takes out abandoned lines.

use super::client::Client;
use super::seeing;
use crate::clock::Moment;
use crate::store::Scope;
use crate::store::sql::lock;
use futures_util::future::select;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// We look this often at most, times how many numbers the first one of ours is away from its turn,
const HANDOVER: Duration = Duration::from_millis(1);
/// up to this many,
const FAR: u32 = 5;
/// and this often at least.
const SLOWEST: Duration = Duration::from_millis(400);
/// What is watched is compared this often: hints come up to a second late.
const WATCHING: Duration = Duration::from_millis(400);
/// We look for abandoned lines when we have made this many,
pub(super) const MADE: u64 = 500;
/// or made any this long ago.
const LATER: Duration = Duration::from_secs(3);
/// So many lines are looked through at a time, as long as a quarter of them turns out to be abandoned.
pub(super) const REAPED: u64 = 500;
/// A line that nobody has used for this long is taken out.
const IDLE: Duration = Duration::from_secs(1);
/// A lapsed ticket is looked for a little after its end, not before.
const AFTER: Duration = Duration::from_millis(2);

/// Starts the attendant, if it is not running.
pub(super) fn start(client: &Arc<Client>) {
    let Some(runtime) = client.own_runtime() else { return };
    if !client.attended.swap(true, Ordering::SeqCst) {
        runtime.spawn(attend(Running(Arc::downgrade(client))));
    }
}

/// The attendant of a client. If its runtime ends, another one may start it again.
struct Running(Weak<Client>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(client) = self.0.upgrade() {
            client.attended.store(false, Ordering::SeqCst);
        }
    }
}

async fn attend(running: Running) {
    let mut looked_at = Moment::default();
    let mut watched_at = Moment::default();
    let mut reap_at = Moment::FAR;
    let mut reaped_upto: Option<Vec<u8>> = None;
    let mut marks: HashMap<Scope, String> = HashMap::new();
    while let Some(client) = running.0.upgrade().filter(|client| !client.closed.load(Ordering::SeqCst)) {
        let places = client.ears.places();
        let lapse = lock(&client.lapse).after(AFTER);
        if !places.is_empty() && client.clock.now() >= looked_at.after(pause(&client)).min(lapse) {
            *lock(&client.lapse) = Moment::FAR;
            client.stand.look_anew();
            if let Err(error) = seeing::look(&client, &places).await {
                tracing::debug!(%error, "cannot look for those who wait");
            }
            looked_at = client.clock.now();
        }
        let scopes: Vec<Scope> = lock(&client.watched).keys().cloned().collect();
        if !scopes.is_empty() && client.clock.now() >= watched_at.after(WATCHING) {
            // What fails now is done again by the next round.
            let _ = compare(&client, &scopes, &mut marks).await;
            watched_at = client.clock.now();
        }
        marks.retain(|scope, _| scopes.contains(scope));
        let made = client.made.load(Ordering::Relaxed);
        if made > 0 && reap_at == Moment::FAR {
            reap_at = client.clock.now().after(LATER);
        }
        if made >= MADE || client.clock.now() >= reap_at {
            client.made.store(0, Ordering::Relaxed);
            reap(&client, &mut reaped_upto).await;
            // What was made just now was too young: once more.
            reap_at = if made > 0 { client.clock.now().after(LATER) } else { Moment::FAR };
        }
        let mut wake_at = reap_at;
        if !client.ears.is_empty() {
            wake_at = wake_at.min(looked_at.after(pause(&client))).min(lock(&client.lapse).after(AFTER));
        }
        if !scopes.is_empty() {
            wake_at = wake_at.min(watched_at.after(WATCHING));
        }
        select(pin!(client.bell.rung()), client.clock.sleep_until(wake_at)).await;
    }
}

/// An eighth of the time since something last happened: a waiter learns of its turn after a small part of the time it has
/// waited, and an idle crowd costs next to nothing. In a busy one only the process whose turn is near looks often.
fn pause(client: &Client) -> Duration {
    let quiet = client.clock.now().since(*lock(&client.stirred));
    (quiet / 8).clamp(HANDOVER * client.stand.nearest().min(FAR), SLOWEST)
}

/// Looks whether something has changed within what is watched. One round trip for all.
async fn compare(client: &Client, scopes: &[Scope], marks: &mut HashMap<Scope, String>) -> crate::Result<()> {
    let found = seeing::mark(client, scopes).await?;
    for (scope, mark) in scopes.iter().zip(found) {
        let before = marks.insert(scope.clone(), mark.clone());
        if before.is_none_or(|before| before != mark) {
            match scope {
                Scope::Name(name) => client.hints.tell(name),
                Scope::Prefix(_) => client.hints.somewhere(),
            }
        }
    }
    Ok(())
}

/// Takes out abandoned lines, going on where the last round ended. Two round trips for each [`REAPED`] lines.
async fn reap(client: &Client, upto: &mut Option<Vec<u8>>) {
    let mut wrap = upto.is_some();
    loop {
        match seeing::reap(client, upto.as_deref(), REAPED, IDLE).await {
            Ok((next, reaped)) => {
                let more = match &next {
                    None => std::mem::take(&mut wrap),
                    Some(_) => reaped >= REAPED / 4,
                };
                *upto = next;
                if !more {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "cannot look for abandoned lines");
                return;
            }
        }
    }
}
