//! The client's own work, on the library thread: it listens to what other clients tell, looks for those who wait when somebody
//! may have lapsed (or, where nothing is told, again and again), keeps its watches alive, and takes out abandoned lines.

use super::client::Client;
use super::settings;
use super::verbs;
use crate::clock::Moment;
use crate::store::Scope;
use crate::store::sql::lock;
use futures_util::future::{Either, select};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Messages get lost: at the latest after this long everybody who waits is looked for, told or not.
const TICK: Duration = Duration::from_secs(5);
/// Where nothing is told, we look this often at most,
const FASTEST: Duration = Duration::from_millis(5);
/// and this often at least.
const SLOWEST: Duration = Duration::from_millis(200);
/// A watch that is told lives this long in the database, and is renewed after a third of it.
pub(super) const WATCH_LEASE: Duration = Duration::from_secs(60);
/// We look for abandoned lines when we have made this many,
pub(super) const MADE: u64 = 500;
/// or made any this long ago; so what we leave behind is taken out, by us or by the next one.
const LATER: Duration = Duration::from_secs(3);
/// So many lines are looked through at a time, as long as a quarter of them turns out to be abandoned.
const REAPED: i64 = 2000;
/// A line that nobody has used for this long is taken out.
const IDLE: Duration = Duration::from_secs(1);
/// A look that failed is tried again after this long.
const AGAIN: Duration = Duration::from_millis(250);
/// A lapsed ticket is looked for a little after its end, not before.
const AFTER: Duration = Duration::from_millis(2);

/// Starts what is not running yet.
pub(super) fn start(client: &Arc<Client>) {
    let Some(runtime) = client.own_runtime() else { return };
    if !client.attended.swap(true, Ordering::SeqCst) {
        let running = Running(Arc::downgrade(client), false);
        runtime.spawn(attend(running));
    }
    if client.listens() && !client.listening.swap(true, Ordering::SeqCst) {
        let running = Running(Arc::downgrade(client), true);
        runtime.spawn(listen(running));
    }
}

/// A task of a client. If its runtime ends, another one may start it again.
struct Running(Weak<Client>, bool);

impl Running {
    fn client(&self) -> Option<Arc<Client>> {
        self.0.upgrade().filter(|client| !client.closed.load(Ordering::SeqCst))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(client) = self.0.upgrade() {
            let flag = if self.1 { &client.listening } else { &client.attended };
            flag.store(false, Ordering::SeqCst);
        }
    }
}

/// The life of the attendant: sleeps until there is something to look for.
async fn attend(running: Running) {
    let mut last_look = Moment::default();
    let mut watched_at = Moment::default();
    let mut reap_at = Moment::FAR;
    let mut reaped_upto: Option<String> = None;
    let mut marks: HashMap<Scope, String> = HashMap::new();
    while let Some(client) = running.client() {
        let places = client.ears.places();
        let lapse = lock(&client.lapse).after(AFTER);
        if !places.is_empty() && client.clock.now() >= last_look.after(pause(&client)).min(lapse) {
            *lock(&client.lapse) = Moment::FAR;
            if let Err(error) = verbs::look(&client, &places).await {
                tracing::debug!(%error, "cannot look for those who wait");
                client.expect_lapse(Some(AGAIN));
            }
            last_look = client.clock.now();
        }
        let scopes: Vec<Scope> = lock(&client.watched).keys().cloned().collect();
        let every = if client.pushes() { WATCH_LEASE / 3 } else { SLOWEST };
        if !scopes.is_empty() && client.clock.now() >= watched_at.after(every) {
            // What fails now is done again by the next round.
            let _ = match client.pushes() {
                true => verbs::watch(&client, &scopes).await,
                false => compare(&client, &scopes, &mut marks).await,
            };
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
            wake_at = last_look.after(pause(&client)).min(lock(&client.lapse).after(AFTER));
        }
        if !scopes.is_empty() {
            wake_at = wake_at.min(watched_at.after(every));
        }
        select(pin!(client.bell.rung()), client.clock.sleep_until(wake_at)).await;
    }
}

/// Takes out abandoned lines, going on where the last round ended. One round trip for each [`REAPED`] lines.
async fn reap(client: &Client, upto: &mut Option<String>) {
    let mut wrap = upto.is_some();
    loop {
        match verbs::reap(client, upto.as_deref(), REAPED, IDLE).await {
            Ok((next, reaped)) => {
                let more = match &next {
                    None => std::mem::take(&mut wrap),
                    // Somebody else is at it if it did not get on.
                    Some(_) => next != *upto && reaped >= REAPED / 4,
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

/// How long until the next look: told by others, a slow tick; else an eighth of the time since something last happened, so
/// that a waiter learns of its turn after a small part of the time it has waited, and an idle crowd costs next to nothing.
fn pause(client: &Client) -> Duration {
    if client.pushes() {
        return TICK;
    }
    let quiet = client.clock.now().since(*lock(&client.stirred));
    (quiet / 8).clamp(FASTEST, SLOWEST)
}

/// Looks whether something has changed within what is watched. One round trip for all.
async fn compare(client: &Client, scopes: &[Scope], marks: &mut HashMap<Scope, String>) -> crate::Result<()> {
    let found = verbs::mark(client, scopes).await?;
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

/// The life of the listener: one connection for all who wait in this process.
async fn listen(running: Running) {
    let mut failures = 0_u32;
    while let Some(client) = running.client() {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let settings = client.settings.listener();
        let listening = async {
            let (connection, notes) = settings::open(&settings, &runtime).await?;
            connection.batch_execute(&format!("LISTEN fencelock_{}", client.me)).await?;
            Ok::<_, tokio_postgres::Error>((connection, notes))
        };
        let limit = client.clock.sleep_until(client.clock.now().after(Duration::from_secs(5)));
        let opened = match select(pin!(listening), limit).await {
            Either::Left((Ok(opened), _)) => Some(opened),
            Either::Left((Err(error), _)) => {
                tracing::debug!(%error, "cannot listen");
                None
            }
            Either::Right(_) => None,
        };
        if let Some((_connection, mut notes)) = opened {
            failures = 0;
            // What was told before is lost, also before the first time: look, and ask whether what we hold is still there.
            *lock(&client.lapse) = Moment::default();
            client.bell.ring();
            client.hints.somewhere();
            if let Some(host) = client.host.get() {
                host.doubt(None);
            }
            loop {
                match select(pin!(notes.recv()), pin!(client.end.rung())).await {
                    Either::Left((Some(note), _)) => client.hear(&note, true),
                    Either::Left((None, _)) => break,
                    Either::Right(_) => return,
                }
            }
        }
        failures += 1;
        let pause = Duration::from_millis(fastrand::u64(20..=50) << failures.min(6));
        client.clock.sleep_until(client.clock.now().after(pause)).await;
    }
}

/// Whether a message that one connection sends reaches another one that listens: it does not behind a pooler that shares
/// connections between transactions. Two connections, three round trips.
pub(super) async fn can_listen(
    sender: &tokio_postgres::Client,
    settings: &settings::Settings,
    clock: &crate::clock::Clock,
    runtime: &tokio::runtime::Handle,
) -> bool {
    let channel = format!("fencelock_{}", crate::store::sql::client_name());
    let began = clock.now();
    let probe = async {
        let (listener, mut notes) = settings::open(&settings.listener(), runtime).await.ok()?;
        listener.batch_execute(&format!("LISTEN {channel}")).await.ok()?;
        sender.batch_execute(&format!("NOTIFY {channel}")).await.ok()?;
        let patience = (clock.now().since(began) * 3).max(Duration::from_millis(500));
        match select(pin!(notes.recv()), clock.sleep_until(clock.now().after(patience))).await {
            Either::Left((Some(_), _)) => Some(()),
            _ => None,
        }
    };
    let limit = clock.sleep_until(began.after(Duration::from_secs(5)));
    matches!(select(pin!(probe), limit).await, Either::Left((Some(()), _)))
}
