//! Stripes: a stock in parts that many walk over, and keys that have a stripe of their own.

use crate::ctx::{Ctx, SOON, soon};
use crate::suite::tests;
use fencelock::{ErrorKind, Walk};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

tests!("striped":
    walkers_sell_all_pieces_and_no_more,
    a_key_has_one_stripe_for_everybody,
);

const STRIPES: usize = 4;

/// Each piece is looked at and taken in two steps, which only the stripe's lock makes one.
async fn walkers_sell_all_pieces_and_no_more(ctx: Arc<Ctx>) {
    let clients = [ctx.client().await, ctx.client().await];
    let name = ctx.text("x");
    let pieces: Arc<Vec<AtomicU32>> = Arc::new((0..STRIPES as u32).map(AtomicU32::new).collect());
    let stock: u32 = (0..STRIPES as u32).sum();
    let mut walkers = Vec::new();
    for client in &clients {
        for _ in 0..2 {
            let (striped, pieces) = (client.locks.striped(&name, STRIPES), pieces.clone());
            walkers.push(tokio::spawn(async move {
                let mut sold = 0;
                let walk = || {
                    striped.walk(|stripe| {
                        let pieces = pieces.clone();
                        async move {
                            let left = pieces[stripe.index].load(Ordering::SeqCst);
                            tokio::task::yield_now().await;
                            if left == 0 {
                                return Walk::Empty;
                            }
                            pieces[stripe.index].store(left - 1, Ordering::SeqCst);
                            Walk::Done(())
                        }
                    })
                };
                while walk().await.expect("walk").is_some() {
                    sold += 1;
                }
                sold
            }));
        }
    }
    let mut sold = 0;
    for walker in walkers {
        sold += tokio::time::timeout(SOON * 2, walker).await.expect("nobody is stuck").expect("no panic");
    }
    assert_eq!(sold, stock, "sold, and there were as many");
    for client in &clients {
        soon("close", client.locks.close()).await;
    }
    assert!(clients[0].locks.list(&format!("{name}/")).await.expect("list").is_empty(), "something is left");
}

async fn a_key_has_one_stripe_for_everybody(ctx: Arc<Ctx>) {
    let (one, other) = (ctx.client().await, ctx.client().await);
    let name = ctx.text("x");
    let (mine, theirs) = (one.locks.striped(&name, STRIPES), other.locks.striped(&name, STRIPES));
    let guard = mine.of_key("customer 7").lock().await.expect("free");
    assert_eq!(theirs.of_key("customer 7").try_lock().await.expect_err("the same stripe").kind(), ErrorKind::Held);
    let elsewhere = (0..).map(|i| format!("customer {i}"));
    let elsewhere = elsewhere.into_iter().find(|key| mine.index_of(key) != mine.index_of("customer 7"));
    let another = theirs.of_key(&elsewhere.expect("some key")).try_lock().await.expect("another stripe is free");
    another.release().await.expect("release");
    guard.release().await.expect("release");
}
