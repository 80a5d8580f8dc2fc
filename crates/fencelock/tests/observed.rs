//! What can be seen from outside: events, the span of an acquisition, and counters, each by its name.

use fencelock::store::memory::MemoryStore;
use fencelock::{Locks, Options, State, VirtualClock};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl<S: tracing::Subscriber> Layer<S> for Heard {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        if event.metadata().target() == "fencelock" {
            self.0.lock().unwrap().push(text.0);
        }
    }

    fn on_new_span(&self, span: &tracing::span::Attributes<'_>, _: &tracing::span::Id, _: Context<'_, S>) {
        let mut text = Text(format!("span {}", span.metadata().name()));
        span.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
}

impl Heard {
    fn has(&self, parts: &[&str]) -> bool {
        self.0.lock().unwrap().iter().any(|line| parts.iter().all(|part| line.contains(part)))
    }
}

#[tokio::test]
async fn the_life_of_a_lock_is_told() {
    let heard = Heard::default();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(heard.clone())).unwrap();
    let recorder = DebuggingRecorder::new();
    let counters = recorder.snapshotter();
    recorder.install().unwrap();

    let clock = VirtualClock::new();
    let locks = Locks::with_store(MemoryStore::with_clock(clock.clock()));
    let mutex = locks.mutex("stock/42");
    let first = mutex.lock_with(Options::new().max_hold(Duration::from_secs(60))).await.unwrap();
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    while locks.inspect("stock/42").await.unwrap().waiting.is_empty() {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(61));
    assert_eq!(first.state(), State::Lost);
    let second = waiter.await.unwrap().unwrap();
    let token = second.token().number();
    second.release().await.unwrap();

    assert!(heard.has(&["span acquire", "name=stock/42", "mode=exclusive"]), "{heard:?}");
    assert!(heard.has(&["DEBUG", "acquired", "name=stock/42", "token=1"]), "{heard:?}");
    assert!(heard.has(&["DEBUG", "waiting", "token=2"]), "{heard:?}");
    assert!(heard.has(&["TRACE", "renewed"]), "{heard:?}");
    assert!(heard.has(&["WARN", "lost", "why=\"ended\"", "token=1"]), "{heard:?}");
    assert!(heard.has(&["DEBUG", "released", &format!("token={token}")]), "{heard:?}");

    let counted: HashMap<String, u64> = counters
        .snapshot()
        .into_vec()
        .into_iter()
        .filter_map(|(key, _, _, value)| match value {
            DebugValue::Counter(n) => Some((key.key().name().to_string(), n)),
            _ => None,
        })
        .collect();
    for (name, at_least) in [
        ("fencelock_acquired_total", 2),
        ("fencelock_queued_total", 1),
        ("fencelock_lost_total", 1),
        ("fencelock_released_total", 1),
        ("fencelock_renewed_total", 2),
    ] {
        assert!(counted.get(name).is_some_and(|n| *n >= at_least), "{name}: {counted:?}");
    }
}

impl std::fmt::Debug for Heard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#?}", self.0.lock().unwrap())
    }
}
