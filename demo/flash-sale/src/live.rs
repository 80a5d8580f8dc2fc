//! How a sale goes, for whoever looks on: a page that is told ten times a second, or a terminal with a progress bar.

use crate::load::{Recent, Tally};
use crate::plan::{Plan, Row};
use crate::seller::LOCK;
use crate::shop::{Books, Shop};
use crate::strategy::Strategy;
use fencelock::{Locks, Seen};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often somebody is told.
const EVERY: Duration = Duration::from_millis(100);

/// Everything that the page shows.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct State {
    pub(crate) running: bool,
    /// Counts the sales, so that the page knows a new one.
    pub(crate) sale: u64,
    pub(crate) strategy: String,
    pub(crate) store: String,
    pub(crate) front: String,
    pub(crate) stock: i64,
    pub(crate) books: Books,
    pub(crate) requests: u64,
    pub(crate) of_requests: u64,
    pub(crate) recent: Recent,
    /// Whether there is a lock of ours to look at.
    pub(crate) locked: bool,
    pub(crate) inside: Vec<Person>,
    pub(crate) waiting: Vec<Person>,
    pub(crate) frozen: Option<usize>,
    pub(crate) said: Vec<String>,
    pub(crate) error: Option<String>,
    pub(crate) rows: Vec<Row>,
}

/// Somebody in a line.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Person {
    node: String,
    token: Option<String>,
    lock: String,
    for_ms: Option<u64>,
    lease_ms: Option<u64>,
}

impl Person {
    fn new(lock: &str, seen: &Seen) -> Person {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Person {
            node: seen.identity.clone(),
            token: seen.token.map(|token| token.to_string()),
            lock: lock.into(),
            for_ms: seen.admitted.or(seen.entered).map(millis),
            lease_ms: seen.expires_in.map(millis),
        }
    }
}

/// Whoever looks on.
#[derive(Clone)]
pub(crate) struct Live {
    state: Arc<watch::Sender<State>>,
    for_page: bool,
    bar: Option<ProgressBar>,
}

/// Ends with the sale.
pub(crate) struct Following(tokio::task::JoinHandle<()>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Live {
    /// For a page.
    pub(crate) fn for_page() -> Live {
        Live { state: Arc::new(watch::Sender::default()), for_page: true, bar: None }
    }

    /// For a terminal; silent where there is none.
    pub(crate) fn for_terminal() -> Live {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix:>32} {bar:30} {pos}/{len} {msg}");
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Live { state: Arc::new(watch::Sender::default()), for_page: false, bar }
    }

    pub(crate) fn state(&self) -> &watch::Sender<State> {
        &self.state
    }

    /// One line about what happens.
    pub(crate) fn say(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_string());
        }
        self.state.send_modify(|state| state.said.push(what.into()));
    }

    pub(crate) fn frozen(&self, node: Option<usize>) {
        self.state.send_modify(|state| state.frozen = node);
    }

    /// Follows a sale until what this gives is dropped.
    pub(crate) async fn follow(&self, plan: &Plan, shop: &Shop, tally: &Arc<Tally>, front: &str) -> Following {
        self.state.send_modify(|state| {
            let (sale, rows) = (state.sale + 1, std::mem::take(&mut state.rows));
            // The same sale once more, harder: what was said of it stays.
            let said = if state.running { std::mem::take(&mut state.said) } else { Vec::new() };
            *state = State {
                running: true,
                sale,
                rows,
                said,
                strategy: plan.strategy.name(),
                store: plan.store_name(),
                front: front.into(),
                stock: plan.stock,
                of_requests: (plan.customers * plan.rounds) as u64,
                locked: plan.strategy.locks(),
                books: Books { left: plan.stock, ..Books::default() },
                ..State::default()
            };
        });
        self.begin_bar(format!("{} ({})", plan.strategy.name(), plan.store_name()), plan.customers * plan.rounds);
        let (live, shop, tally, plan) = (self.clone(), shop.clone(), tally.clone(), plan.clone());
        Following(tokio::spawn(async move {
            // A look at the lock costs the store something: only a page is worth it.
            let url = plan.store.as_deref().filter(|_| live.for_page && plan.strategy.locks());
            let locks = match url {
                Some(url) => Locks::builder(url).identity("page").connect().await.ok(),
                None => None,
            };
            let mut tick = tokio::time::interval(EVERY);
            loop {
                tick.tick().await;
                live.look(&plan, &shop, &tally, locks.as_ref()).await;
            }
        }))
    }

    /// Counts the requests of customers who go to another shop, until what this gives is dropped.
    pub(crate) fn count(&self, tally: &Arc<Tally>, customers: usize, rounds: usize) -> Following {
        self.begin_bar(format!("{customers} customers"), customers * rounds);
        let (bar, tally) = (self.bar.clone(), tally.clone());
        Following(tokio::spawn(async move {
            let mut tick = tokio::time::interval(EVERY);
            while let Some(bar) = &bar {
                tick.tick().await;
                bar.set_position(tally.requests());
            }
        }))
    }

    fn begin_bar(&self, what: String, of: usize) {
        if let Some(bar) = &self.bar {
            bar.reset();
            bar.set_length(of as u64);
            bar.set_prefix(what);
            bar.set_message("");
        }
    }

    /// Takes the bar away, so that what is written next stands by itself.
    pub(crate) fn end_bar(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    async fn look(&self, plan: &Plan, shop: &Shop, tally: &Tally, locks: Option<&Locks>) {
        if let Some(bar) = &self.bar {
            bar.set_position(tally.requests());
        }
        if !self.for_page {
            return;
        }
        let books = shop.books().await.ok();
        let (mut inside, mut waiting) = (Vec::new(), Vec::new());
        if let Some(locks) = locks {
            for name in lines(plan.strategy, locks).await {
                let Ok(line) = locks.inspect(&name).await else { continue };
                inside.extend(line.inside.iter().map(|seen| Person::new(&name, seen)));
                waiting.extend(line.waiting.iter().map(|seen| Person::new(&name, seen)));
            }
        }
        let recent = tally.recent();
        self.state.send_modify(|state| {
            (state.inside, state.waiting, state.recent) = (inside, waiting, recent);
            state.requests = tally.requests();
            state.books = books.unwrap_or_else(|| std::mem::take(&mut state.books));
        });
    }

    /// The sale is over.
    pub(crate) fn ended(&self, row: &Row, books: &Books) {
        self.end_bar();
        self.state.send_modify(|state| {
            state.running = false;
            state.books = books.clone();
            (state.inside, state.waiting, state.frozen) = (Vec::new(), Vec::new(), None);
            state.requests = row.requests;
            let key = |row: &Row| (row.strategy.clone(), row.store.clone(), row.nodes);
            state.rows.retain(|other| key(other) != key(row));
            state.rows.push(row.clone());
        });
    }

    /// It could not be brought to an end.
    pub(crate) fn failed(&self, why: &str) {
        self.state.send_modify(|state| {
            state.running = false;
            state.error = Some(why.into());
        });
    }
}

/// The locks that a strategy uses; of many, some.
async fn lines(strategy: Strategy, locks: &Locks) -> Vec<String> {
    match strategy {
        Strategy::Striped | Strategy::LockPerProduct => {
            let listed = locks.list(&format!("{LOCK}/")).await.unwrap_or_default();
            listed.into_iter().take(STRIPES_SHOWN).map(|listed| listed.name.shown().to_string()).collect()
        }
        _ => vec![LOCK.to_string()],
    }
}

const STRIPES_SHOWN: usize = 20;
