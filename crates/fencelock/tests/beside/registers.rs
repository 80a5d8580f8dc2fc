//! What registers promise beside the conformance suite: lost answers, updates that give up, and how long Redis remembers a deletion.

use crate::Stores;
use fencelock::beside::{Beside, Held, Registers};
use fencelock::name::Name;
use fencelock::store::memory::MemoryStore;
use fencelock::store::{BoxFuture, TicketId};
use fencelock::{Effect, Error, ErrorKind, Locks, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[tokio::test]
async fn who_saw_nothing_too_long_ago_on_redis_looks_again() {
    let stores = Stores::open().await;
    let register = stores.redis.register("a");
    let nothing = register.load().await.unwrap();
    let written = register.store_if(nothing.version, "x").await.unwrap().unwrap();
    assert!(register.delete_if(written).await.unwrap());
    // The deletion is remembered for a minute.
    let left: i64 = stores.server.command(&["PTTL", "fencelock:register:{a}"]);
    assert!((50_000..=60_000).contains(&left), "{left}");
    // When it is forgotten, so is every load from before it.
    let kept: String = stores.server.command(&["GET", "fencelock:register:{a}"]);
    let deleted: u64 = kept.split(' ').nth(1).unwrap().parse().unwrap();
    let (secs, micros): (u64, u64) = stores.server.command(&["TIME"]);
    let now = secs * 1_000_000 + micros;
    assert!(deleted <= now && now - deleted < 50_000_000, "{deleted} at {now}");
    let store_if = include_str!("../../src/store/redis/store_if.lua");
    let later = store_if.replace("redis.call('TIME')", "{0, ARGV[5]}");
    let version = nothing.version.to_string();
    for (after, answer) in [(61_000_000, "0"), (70_000_000, "0")] {
        let _: u64 = stores.server.command(&["DEL", "fencelock:register:{a}"]);
        let then = (deleted + after).to_string();
        let said: String =
            stores.server.command(&["EVAL", &later, "1", "fencelock:register:{a}", &version, "ab", "1", "y", &then]);
        assert_eq!(said, answer, "{after} us after the deletion");
    }
}

/// Loses answers: every third write is carried out and not told, or not carried out and not told.
#[derive(Debug)]
struct Forgetful {
    store: Arc<MemoryStore>,
    writes: AtomicU32,
    always_behind: bool,
}

impl Registers for Forgetful {
    fn load<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Held>> {
        Registers::load(&*self.store, name)
    }

    fn store_if<'a>(
        &'a self,
        name: &'a Name,
        version: u64,
        value: Option<&'a [u8]>,
        write: TicketId,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        Box::pin(async move {
            match self.writes.fetch_add(1, Ordering::SeqCst) % 3 {
                1 => return Err(Error::unknown("the question was lost")),
                2 => {
                    self.store.store_if(name, version, value, write).await?;
                    if self.always_behind {
                        let there = Registers::load(&*self.store, name).await?.version;
                        self.store.store_if(name, there, Some(b"0"), TicketId::new()).await?;
                    }
                    return Err(Error::unknown("the answer was lost"));
                }
                _ => {}
            }
            self.store.store_if(name, version, value, write).await
        })
    }
}

fn forgetful(always_behind: bool) -> Locks {
    let forgetful = Forgetful { store: Arc::new(MemoryStore::new()), writes: AtomicU32::new(0), always_behind };
    Locks::with_store_and(Arc::new(MemoryStore::new()), Beside::nothing().with_registers(Arc::new(forgetful)))
}

fn one_more(value: Option<&[u8]>) -> Option<String> {
    let value = value.map_or(0, |value| std::str::from_utf8(value).unwrap().parse::<u32>().unwrap());
    Some((value + 1).to_string())
}

#[tokio::test]
async fn a_write_without_an_answer_counts_once() {
    let locks = forgetful(false);
    let register = locks.register("a");
    for round in 1..=30 {
        let now = register.update(one_more).await.unwrap();
        assert_eq!(now.value.unwrap(), round.to_string().into_bytes());
    }
}

#[tokio::test]
async fn a_write_that_may_have_been_written_over_is_told_as_unknown() {
    let locks = forgetful(true);
    let register = locks.register("a");
    let mut unknown = 0;
    for _ in 0..30 {
        if let Err(error) = register.update(one_more).await {
            assert_eq!(error.effect(), Effect::Unknown, "{error}");
            unknown += 1;
        }
    }
    assert!(unknown > 0);
}

/// Somebody who is always faster.
#[tokio::test]
async fn an_update_gives_up_in_the_end() {
    let store = Arc::new(MemoryStore::new());
    let locks = Locks::with_store_and(store.clone(), Beside::all(&store));
    let register = locks.register("a");
    let name = Name::new("", "a").unwrap();
    let mut tries = 0;
    let error = register
        .update(|value| {
            tries += 1;
            let there = futures_util::FutureExt::now_or_never(Registers::load(&*store, &name)).unwrap().unwrap();
            let other = Registers::store_if(&*store, &name, there.version, Some(b"7"), TicketId::new());
            futures_util::FutureExt::now_or_never(other).unwrap().unwrap();
            one_more(value)
        })
        .await
        .unwrap_err();
    assert_eq!((error.kind(), error.name(), tries), (ErrorKind::Conflict, Some("a"), 100));
    assert_eq!(error.effect(), Effect::None);
    // Who does not want to change anything does not write.
    let seen = register.update(|_| None::<&str>).await.unwrap();
    assert_eq!(seen.value.unwrap(), b"7");
}
