//! Registers: only who has seen the latest value writes, and no version ever comes back.

use crate::ctx::Ctx;
use crate::suite::tests;
use fencelock::beside::Registers;
use fencelock::store::TicketId;
use fencelock::{ErrorKind, Register, Version};
use std::collections::BTreeSet;
use std::sync::Arc;

tests!("registers":
    only_the_latest_version_may_be_written_over [Registers],
    no_version_comes_back_after_a_deletion [Registers],
    a_write_that_is_repeated_is_one_write [Registers],
    any_bytes_up_to_a_mebibyte [Registers],
    many_count_exactly [Registers],
    a_register_is_no_lock [Registers],
);

/// Writes a first value. Whoever saw none may be told to look again without a reason.
async fn begin(register: &Register, value: &str) -> (Version, Version) {
    for _ in 0..1_000 {
        let nothing = register.load().await.expect("load");
        assert_eq!(nothing.value, None, "somebody wrote it");
        if let Some(version) = register.store_if(nothing.version, value).await.expect("store_if") {
            return (nothing.version, version);
        }
    }
    panic!("a first value is never taken");
}

async fn only_the_latest_version_may_be_written_over(ctx: Arc<Ctx>) {
    let (one, other) = (ctx.beside().await, ctx.beside().await);
    let (mine, theirs) = (one.register(&ctx.text("a")), other.register(&ctx.text("a")));
    let (nothing, first) = begin(&mine, "one").await;
    assert!(first > nothing, "{first} after {nothing}");
    assert_eq!(theirs.store_if(nothing, "two").await.expect("store_if"), None, "there is a value by now");
    let seen = theirs.load().await.expect("load");
    assert_eq!((seen.value.as_deref(), seen.version), (Some(&b"one"[..]), first));
    let second = theirs.store_if(first, "two").await.expect("store_if").expect("nobody was faster");
    assert!(second > first, "{second} after {first}");
    assert_eq!(mine.store_if(first, "three").await.expect("store_if"), None, "it was written over");
    assert!(!mine.delete_if(first).await.expect("delete_if"), "it was written over");
    assert_eq!(mine.load().await.expect("load").value.as_deref(), Some(&b"two"[..]));
}

async fn no_version_comes_back_after_a_deletion(ctx: Arc<Ctx>) {
    let locks = ctx.beside().await;
    let register = locks.register(&ctx.text("a"));
    let mut versions = BTreeSet::new();
    for round in 0..ctx.rounds(25) {
        let (nothing, written) = begin(&register, "x").await;
        assert!(versions.insert(written), "version {written} in round {round} again");
        assert_eq!(versions.last(), Some(&written), "versions grow");
        assert!(register.delete_if(written).await.expect("delete_if"));
        assert_eq!(register.load().await.expect("load").value, None, "it was deleted");
        // Whoever saw it, or saw nothing before it was there, has missed something.
        assert_eq!(register.store_if(written, "y").await.expect("store_if"), None, "a deleted version was believed");
        assert_eq!(register.store_if(nothing, "y").await.expect("store_if"), None, "a deletion was not noticed");
    }
}

async fn a_write_that_is_repeated_is_one_write(ctx: Arc<Ctx>) {
    let registers: Arc<dyn Registers> = ctx.registers().await;
    let (name, id) = (ctx.name("a"), TicketId::new());
    let mut first = None;
    while first.is_none() {
        let nothing = registers.load(&name).await.expect("load").version;
        first = registers.store_if(&name, nothing, Some(b"one"), id).await.expect("store_if");
        let again = registers.store_if(&name, nothing, Some(b"one"), id).await.expect("store_if");
        assert!(first.is_none() || again == first, "{again:?}, not {first:?} again");
    }
    let second = registers.store_if(&name, first.unwrap_or(0), Some(b"two"), TicketId::new()).await.expect("store_if");
    assert!(second > first, "{second:?} after {first:?}");
    let late = registers.store_if(&name, first.unwrap_or(0), Some(b"one"), id).await.expect("store_if");
    assert_eq!(late, None, "a late repetition wrote over what came after it");
    assert_eq!(registers.load(&name).await.expect("load").value.as_deref(), Some(&b"two"[..]));
}

async fn any_bytes_up_to_a_mebibyte(ctx: Arc<Ctx>) {
    let locks = ctx.beside().await;
    let mut rng = ctx.rng();
    let long = (0..1 << 20).map(|_| rng.u8(..)).collect();
    let values = [Vec::new(), b" ".to_vec(), b"1 2 3".to_vec(), vec![0, 255, 0, 10, 13, 32, 39, 92], long];
    for (i, value) in values.iter().enumerate() {
        let register = locks.register(&ctx.text(&format!("odd \n name {{}}/{i}")));
        let version = register.set(value).await.expect("set");
        let seen = register.load().await.expect("load");
        assert!(seen.value.as_ref() == Some(value), "value {i} came back as another one");
        assert_eq!(seen.version, version);
        assert!(register.delete_if(version).await.expect("delete_if"));
    }
    let register = locks.register(&ctx.text("long"));
    let error = register.set(vec![0; (1 << 20) + 1]).await.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

async fn many_count_exactly(ctx: Arc<Ctx>) {
    let (tasks, times) = (8, ctx.rounds(50));
    let mut counting = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let (locks, name) = (ctx.beside().await, ctx.text("count"));
        counting.spawn(async move {
            let register = locks.register(&name);
            for _ in 0..times {
                let add = |value: Option<&[u8]>| {
                    let value = value.map_or(0, |value| std::str::from_utf8(value).unwrap().parse::<usize>().unwrap());
                    Some((value + 1).to_string())
                };
                register.update(add).await.expect("update");
            }
        });
    }
    while let Some(done) = counting.join_next().await {
        done.expect("counting");
    }
    let locks = ctx.beside().await;
    let value = locks.register(&ctx.text("count")).load().await.expect("load").value.expect("a value");
    assert_eq!(String::from_utf8_lossy(&value), (tasks * times).to_string());
}

async fn a_register_is_no_lock(ctx: Arc<Ctx>) {
    let locks = ctx.beside().await;
    let register = locks.register(&ctx.text("a"));
    let version = register.set("x").await.expect("set");
    assert!(locks.list(&ctx.text("")).await.expect("list").is_empty(), "a register is listed as a lock");
    let guard = locks.mutex(&ctx.text("a")).try_lock().await.expect("nobody holds it");
    assert_eq!(register.load().await.expect("load").version, version);
    guard.release().await.expect("release");
    assert!(register.delete_if(version).await.expect("delete_if"));
}
