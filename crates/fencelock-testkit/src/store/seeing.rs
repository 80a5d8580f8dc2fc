//! `inspect` and `list`: who is where, since when and for how long.

use crate::ctx::{Ctx, SOON};
use crate::suite::tests;
use fencelock::line::WHOLE;
use fencelock::store::{Enter, Mode};
use std::sync::Arc;
use std::time::Duration;

tests!("inspect":
    an_empty_line,
    who_is_inside_and_who_waits [Fair],
    modes_and_weights [Permits Queue],
    what_they_say_of_themselves,
    since_when_and_for_how_long [Queue],
    a_list_is_by_prefix_and_in_order,
    a_list_goes_on_after_a_key,
    a_list_counts_inside_and_waiting [Queue],
);

async fn an_empty_line(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let line = client.inspect(&ctx.name("a")).await;
    assert_eq!(line, fencelock::Line::default());
    assert_eq!(client.store.list(ctx.folder(), None, 10).await.expect("list"), [], "looking makes no line");
}

async fn who_is_inside_and_who_waits(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let tickets: Vec<Enter> = (0..4).map(|_| ctx.mutex(&name)).collect();
    for ticket in &tickets {
        client.enter(ticket).await;
    }
    let line = ctx.client().await.inspect(&name).await;
    assert_eq!((line.capacity, line.inside.len(), line.waiting.len()), (WHOLE, 1, 3));
    let owners: Vec<String> = line.inside.iter().chain(&line.waiting).map(|seen| seen.owner.clone()).collect();
    let entered: Vec<String> = tickets.iter().map(|ticket| ticket.owner.to_string()).collect();
    assert_eq!(owners, entered, "in order");
    let numbers: Vec<u64> = line.inside.iter().chain(&line.waiting).filter_map(|seen| seen.token).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    for ticket in &tickets {
        client.leave(ticket).await;
    }
    assert!(client.is_empty(&name).await);
}

async fn modes_and_weights(ctx: Arc<Ctx>) {
    let (client, a, b) = (ctx.client().await, ctx.name("a"), ctx.name("b"));
    let tickets = [ctx.reader(&a), ctx.writer(&a), ctx.permits(&b, 2, 3)];
    for ticket in &tickets {
        client.enter(ticket).await;
    }
    let line = client.inspect(&a).await;
    assert_eq!((line.inside[0].mode, line.inside[0].weight), (Mode::Shared, 1));
    assert_eq!((line.waiting[0].mode, line.waiting[0].weight), (Mode::Exclusive, WHOLE));
    let line = client.inspect(&b).await;
    assert_eq!((line.capacity, line.inside[0].mode, line.inside[0].weight), (3, Mode::Permits, 2));
    for ticket in &tickets {
        client.leave(ticket).await;
    }
}

async fn what_they_say_of_themselves(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let mut ticket = ctx.mutex(&name);
    ticket.note.host = "web-3.example".into();
    ticket.note.identity = "the \"odd\" one, 100 % 🔒 \\ ' ; -- \u{1b}[0m\n".into();
    ticket.note.reason = Some("deploy\t88".into());
    ticket.note.pid = 4_000_000_000;
    client.admitted(&ticket).await;
    let seen = ctx.client().await.inspect(&name).await.inside.remove(0);
    assert_eq!(seen.host, &*ticket.note.host);
    assert_eq!(seen.identity, &*ticket.note.identity);
    assert_eq!(seen.reason.as_deref(), ticket.note.reason.as_deref());
    assert_eq!((seen.pid, seen.owner), (ticket.note.pid, ticket.owner.to_string()));
    client.leave(&ticket).await;
}

async fn since_when_and_for_how_long(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let (holder, waiter) = (ctx.mutex(&name), ctx.mutex(&name));
    let before = client.clock().now();
    client.admitted(&holder).await;
    client.queued(&waiter).await;
    let after = client.clock().now();
    client.sleep_past(after.after(Duration::from_millis(100))).await;
    let asked = client.clock().now();
    let line = client.inspect(&name).await;
    let answered = client.clock().now();
    // A store may count in milliseconds, a few of them wrong.
    let blur = Duration::from_millis(20);
    for seen in [&line.inside[0], &line.waiting[0]] {
        let Some(entered) = seen.entered else { continue };
        assert!(entered + blur >= asked.since(after), "{entered:?} is too short");
        assert!(entered <= answered.since(before) + blur, "{entered:?} is too long");
    }
    if let (Some(admitted), Some(entered)) = (line.inside[0].admitted, line.inside[0].entered) {
        assert!(admitted <= entered + blur, "admitted before it entered");
    }
    assert_eq!(line.waiting[0].admitted, None);
    if let Some(left) = line.inside[0].expires_in {
        assert!(left <= ctx.long() * 2 && left > ctx.long() - SOON, "{left:?} of {:?}", ctx.long());
    }
    client.leave(&holder).await;
    client.leave(&waiter).await;
}

async fn a_list_is_by_prefix_and_in_order(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let tickets: Vec<Enter> =
        ["b", "a", "c/1", "c/2", "ca", "d"].iter().map(|name| ctx.mutex(&ctx.name(name))).collect();
    for ticket in &tickets {
        client.admitted(ticket).await;
    }
    let keys = async |prefix: String| -> Vec<String> {
        let list = client.store.list(&prefix, None, 100).await.expect("list");
        list.iter().map(|listed| listed.name.key().replace(&format!("{}/", ctx.folder()), "")).collect()
    };
    assert_eq!(keys(format!("{}/", ctx.folder())).await, ["a", "b", "c/1", "c/2", "ca", "d"]);
    assert_eq!(keys(ctx.text("c/")).await, ["c/1", "c/2"]);
    assert_eq!(keys(ctx.text("c")).await, ["c/1", "c/2", "ca"]);
    assert_eq!(keys(ctx.text("x")).await, [""; 0]);
    for ticket in &tickets {
        client.leave(ticket).await;
    }
    assert_eq!(keys(format!("{}/", ctx.folder())).await, [""; 0], "an empty line is not listed");
}

async fn a_list_goes_on_after_a_key(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let tickets: Vec<Enter> = (0..23).map(|i| ctx.mutex(&ctx.name(&format!("n{i:02}")))).collect();
    for ticket in &tickets {
        client.admitted(ticket).await;
    }
    let prefix = ctx.text("n");
    let mut all = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = client.store.list(&prefix, after.as_deref(), 5).await.expect("list");
        assert!(page.len() <= 5);
        all.extend(page.iter().map(|listed| listed.name.key().to_string()));
        after = all.last().cloned();
        if page.len() < 5 {
            break;
        }
    }
    let keys: Vec<String> = tickets.iter().map(|ticket| ticket.place.name.key().to_string()).collect();
    assert_eq!(all, keys);
    assert_eq!(client.store.list(&prefix, None, 0).await.expect("list"), []);
    for ticket in &tickets {
        client.leave(ticket).await;
    }
}

async fn a_list_counts_inside_and_waiting(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let tickets: Vec<Enter> = (0..3).map(|_| ctx.mutex(&name)).collect();
    for ticket in &tickets {
        client.enter(ticket).await;
    }
    let listed = client.store.list(&ctx.text("a"), None, 10).await.expect("list").remove(0);
    assert_eq!((listed.name.key(), listed.inside), (name.key(), 1));
    assert_eq!(listed.waiting, 2, "{listed:?}");
    assert!(listed.held.is_none_or(|held| held < SOON));
    for ticket in &tickets {
        client.leave(ticket).await;
    }
}
