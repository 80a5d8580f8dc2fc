//! Names: two never share a lock, one always does, and what the user wrote is shown again.

use crate::ctx::{Ctx, unqueued};
use crate::suite::tests;
use fencelock::name::Name;
use fencelock::store::Enter;
use std::sync::Arc;

tests!("names":
    odd_names_never_share_a_lock,
    a_name_of_a_megabyte,
);

const ODD: &[&str] = &[
    "/",
    "//",
    "a/",
    "/a",
    "a//b",
    ".",
    "..",
    "a/../b",
    "a/./b",
    "a b",
    "a%20b",
    "%a",
    "a\0b",
    "a\0",
    "a",
    "A",
    "ä",
    "a\u{308}",
    "🔒",
    "а",
    "a*?[",
    "{a}",
    "a\r\nb",
    "\u{1b}[31m",
    " a",
    "a ",
    "lock-0000000001",
    "_c_x-lock-0000000001",
    "__WRIT__0000000007",
    "a/__READ__0000000007",
    "694d81417acd4754",
    "694d81417acd4754-00112233445566778899aabbccddeeff",
    "00112233445566778899aabbccddeeff",
    "0b3f1c2a-0000-4000-8000-000000000000",
    ".lock",
    "a/.lock",
    "%~00112233445566778899aabbccddeeff",
    "zookeeper",
    "zookeeper/quota",
    "'; drop table tickets; --",
    "a_b",
    "a%b",
    "a\\b",
    "a:b",
    "a,b",
    "*",
    "$1",
    "\u{202e}a",
];

async fn odd_names_never_share_a_lock(ctx: Arc<Ctx>) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    // In a folder of their own, since other tests may use the same; beside each other, as users would.
    let tickets: Vec<(String, Enter)> = ODD
        .iter()
        .map(|odd| {
            let text = ctx.text(odd);
            (text.clone(), ctx.mutex(&Name::new("", &text).expect("a name")))
        })
        .collect();
    for (text, ticket) in &tickets {
        client.admitted(&unqueued(ticket.clone())).await;
        other.full(&unqueued(ctx.mutex(&Name::new("", text).expect("a name")))).await;
    }
    let listed = other.store.list(&ctx.text(""), None, 1000).await.expect("list");
    for (text, ticket) in &tickets {
        let seen = other.inspect(&ticket.place.name).await;
        assert_eq!((seen.inside.len(), seen.waiting.len()), (1, 0), "{text:?}");
        assert!(listed.iter().any(|listed| listed.name.shown() == *text), "{text:?} is shown back");
    }
    assert_eq!(listed.len(), tickets.len());
    for (text, ticket) in &tickets {
        assert_eq!(client.leave(ticket).await, fencelock::store::Presence::There, "{text:?}");
    }
    assert_eq!(other.store.list(&ctx.text(""), None, 10).await.expect("list"), []);
}

async fn a_name_of_a_megabyte(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let long = ctx.text(&"x".repeat(1 << 20));
    let similar = format!("{}y", &long[..long.len() - 1]);
    let [one, two] = [&long, &similar].map(|text| ctx.mutex(&Name::new("", text).expect("a name")));
    client.admitted(&unqueued(one.clone())).await;
    client.admitted(&unqueued(two.clone())).await;
    client.full(&unqueued(ctx.mutex(&Name::new("", &long).expect("a name")))).await;
    let listed = client.store.list(one.place.name.key(), None, 10).await.expect("list");
    assert_eq!(listed.len(), 1);
    assert!(listed[0].name.shown().starts_with(&ctx.text("xxxx")), "what is kept of it is shown");
    client.leave(&one).await;
    client.leave(&two).await;
}
