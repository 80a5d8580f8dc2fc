//! Elections: one leader at a time, seen by everybody, replaced when it resigns or is lost.

use crate::ctx::{Ctx, SOON, eventually, poll_times, soon};
use crate::suite::tests;
use fencelock::{ErrorKind, Leader, Leadership, Options, Released, State};
use futures_util::{Stream, StreamExt};
use std::sync::Arc;
use std::time::Duration;

tests!("election":
    the_leader_is_seen_with_its_value_and_term,
    candidates_lead_in_order_and_terms_grow [Fair Fencing],
    changes_are_observed,
    lost_leadership_is_told [Expel],
    a_cancelled_candidacy_leaves_nothing,
    a_mutex_of_that_name_is_the_same_lock,
);

/// Where the store tells others the numbers of tickets.
fn is_term_of(leader: &Leader, leadership: &Leadership) -> bool {
    leader.term == leadership.term() || leader.term == 0
}

/// The next leader with this value, or none for an empty one, whatever comes before.
async fn observed(leaders: &mut (impl Stream<Item = Option<Leader>> + Unpin), value: &str) -> Option<Leader> {
    soon(&format!("{value:?} is observed"), async {
        loop {
            let leader = leaders.next().await.expect("it does not end");
            if leader.as_ref().map_or("", |leader| &leader.value) == value {
                return leader;
            }
        }
    })
    .await
}

async fn the_leader_is_seen_with_its_value_and_term(ctx: Arc<Ctx>) {
    let (one, two) = (ctx.client().await, ctx.client().await);
    let name = ctx.text("a");
    let (election, other) = (one.locks.election(&name), two.locks.election(&name));
    assert_eq!(other.leader().await.expect("leader"), None);
    let mut leadership = election.campaign("10.0.0.7 ä").await.expect("free");
    assert_eq!(leadership.token().number(), leadership.term());
    assert_eq!((leadership.name(), leadership.state()), (name.clone(), State::Safe));
    assert!(leadership.remaining() > Duration::from_secs(1));
    let leader = other.leader().await.expect("leader").expect("somebody leads");
    assert_eq!((leader.value.as_str(), leader.pid), ("10.0.0.7 ä", std::process::id()));
    assert!(is_term_of(&leader, &leadership));
    assert_eq!(other.try_campaign("x").await.expect_err("taken").kind(), ErrorKind::Held);
    let refused = other.campaign_within("x", Duration::from_millis(30)).await.expect_err("taken");
    assert_eq!(refused.kind(), ErrorKind::TimedOut);
    soon("the candidacy is withdrawn", two.locks.close()).await;
    leadership.set_value("10.0.0.8").await.expect("ours");
    let changed = other.leader().await.expect("leader").expect("somebody leads");
    assert_eq!((changed.value.as_str(), changed.term), ("10.0.0.8", leader.term), "the same term");
    assert_eq!(leadership.run(async { 7 }).await.expect("ours"), 7);
    assert_eq!(leadership.resign().await.expect("resign"), Released::Held);
    assert_eq!(other.leader().await.expect("leader"), None);
    assert!(one.is_empty(&ctx.name("a")).await);
}

async fn candidates_lead_in_order_and_terms_grow(ctx: Arc<Ctx>) {
    let (client, name) = (ctx.client().await, ctx.name("a"));
    let election = client.locks.election(&ctx.text("a"));
    let first = election.campaign("0").await.expect("free");
    let mut candidates = Vec::new();
    for i in 1..4 {
        let election = election.clone();
        candidates.push(tokio::spawn(async move { election.campaign(&i.to_string()).await }));
        eventually("it is a candidate", || async { client.inspect(&name).await.waiting.len() == i }).await;
    }
    let mut term = first.term();
    first.resign().await.expect("resign");
    for (i, candidate) in candidates.into_iter().enumerate() {
        let leadership = soon("the next one leads", candidate).await.expect("no panic").expect("leads");
        let leader = election.leader().await.expect("leader").expect("somebody leads");
        assert_eq!(leader.value, (i + 1).to_string());
        assert!(is_term_of(&leader, &leadership));
        assert!(leadership.term() > term);
        term = leadership.term();
        leadership.resign().await.expect("resign");
    }
}

async fn changes_are_observed(ctx: Arc<Ctx>) {
    let (one, two) = (ctx.client().await, ctx.client().await);
    let name = ctx.text("a");
    let mut leaders = two.locks.election(&name).observe().await.expect("observe");
    assert_eq!(soon("the first", leaders.next()).await, Some(None));
    let mut leadership = one.locks.election(&name).campaign("a").await.expect("free");
    let leader = observed(&mut leaders, "a").await.expect("somebody leads");
    assert!(is_term_of(&leader, &leadership));
    leadership.set_value("b").await.expect("ours");
    observed(&mut leaders, "b").await;
    let mut late = two.locks.election(&name).observe().await.expect("observe");
    assert!(observed(&mut late, "b").await.is_some_and(|leader| is_term_of(&leader, &leadership)));
    leadership.resign().await.expect("resign");
    assert_eq!(observed(&mut leaders, "").await, None);
    assert_eq!(observed(&mut late, "").await, None);
}

async fn lost_leadership_is_told(ctx: Arc<Ctx>) {
    let (one, two) = (ctx.client().await, ctx.client().await);
    let name = ctx.text("a");
    let options = Options::new().lease(ctx.lease());
    let mut old = one.locks.election(&name).campaign_with("old", options).await.expect("free");
    let successor = two.locks.election(&name);
    let coming = tokio::spawn(async move { successor.campaign_within("new", SOON * 2).await });
    two.locks.break_ticket(&name, old.term()).await.expect("expel");
    let lost = soon("it is told", old.run(std::future::pending::<()>())).await.expect_err("lost");
    assert_eq!(lost.kind(), ErrorKind::Lost);
    soon("lost", old.lost()).await;
    assert_eq!(old.set_value("x").await.expect_err("lost").kind(), ErrorKind::Lost);
    let new = coming.await.expect("no panic").expect("leads");
    let leader = one.locks.election(&name).leader().await.expect("leader").expect("somebody leads");
    assert!(leader.value == "new" && is_term_of(&leader, &new));
    assert_eq!(old.resign().await.expect("resign"), Released::AlreadyGone);
    assert_eq!(new.resign().await.expect("resign"), Released::Held);
}

async fn a_cancelled_candidacy_leaves_nothing(ctx: Arc<Ctx>) {
    let other = ctx.client().await;
    let (client, faulty) = ctx.faulty().await;
    faulty.yielding();
    for k in 1..500 {
        let name = format!("k{k}");
        let campaign = client.locks.election(&ctx.text(&name));
        let done = poll_times(async move { campaign.campaign("x").await.map(drop) }, k).await.is_some();
        soon("close", client.locks.close()).await;
        let line = ctx.name(&name);
        eventually("nothing is left", || other.is_empty(&line)).await;
        if done {
            return;
        }
    }
    panic!("it never completes");
}

async fn a_mutex_of_that_name_is_the_same_lock(ctx: Arc<Ctx>) {
    let client = ctx.client().await;
    let guard = client.locks.mutex(&ctx.text("a")).lock().await.expect("free");
    let election = client.locks.election(&ctx.text("a"));
    assert_eq!(election.try_campaign("x").await.expect_err("held").kind(), ErrorKind::Held);
    guard.release().await.expect("release");
    election.try_campaign("x").await.expect("free").resign().await.expect("resign");
}
