//! The deadline: counted from the sending, moved by nothing but a confirmed enter or renew, and final. On virtual time, to the
//! nanosecond, through a store whose calls go wrong.

use super::terms::clients;
use crate::ctx::{Ctx, eventually, soon};
use crate::suite::tests;
use crate::wrap::faulty::{Fault, Verb};
use fencelock::{ErrorKind, Options, Released, State};
use std::sync::Arc;
use std::time::Duration;

tests!("deadlines":
    the_deadline_counts_from_the_sending_of_the_enter [VirtualTime],
    a_late_enter_is_renewed_before_the_guard_is_given [VirtualTime],
    an_enter_answered_after_its_lease_is_no_grant [VirtualTime],
    the_deadline_counts_from_the_sending_of_the_renewal [VirtualTime],
    a_grant_does_not_move_the_deadline [VirtualTime],
    a_grant_with_little_left_is_renewed_first [VirtualTime],
    failed_renewals_are_jeopardy_and_pass [VirtualTime],
    overdue_renewals_are_jeopardy [VirtualTime],
    without_renewals_it_is_lost_at_the_deadline_and_not_before [VirtualTime],
    a_renewal_answered_after_the_deadline_does_not_revive [VirtualTime],
    a_stopped_process_finds_itself_lost [VirtualTime],
    a_renewal_under_way_during_the_release_is_no_loss [VirtualTime],
    a_renewal_under_way_during_an_upgrade_is_no_loss [VirtualTime],
    a_waiter_that_cannot_renew_queues_again [VirtualTime],
);

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(10);
const MARGIN: Duration = Duration::from_millis(200);

fn options() -> Options {
    Options::new().lease(LEASE)
}

fn name(name: &str) -> fencelock::name::Name {
    fencelock::name::Name::new("", name).expect("a name")
}

async fn the_deadline_counts_from_the_sending_of_the_enter(ctx: Arc<Ctx>) {
    let (clock, client, faulty, _) = clients(&ctx).await;
    faulty.next(Verb::Enter, [Fault::DelayAfter(3 * SECOND)]);
    let lock = tokio::spawn({
        let mutex = client.locks.mutex("a");
        async move { mutex.lock_with(options()).await }
    });
    eventually("it is sent", || std::future::ready(faulty.delayed() == 1)).await;
    clock.advance(3 * SECOND);
    let guard = soon("the answer", lock).await.expect("no panic").expect("lock");
    assert_eq!(guard.remaining(), LEASE - MARGIN - 3 * SECOND);
    assert_eq!(faulty.calls(Verb::Renew), 0, "enough is left");
}

async fn a_late_enter_is_renewed_before_the_guard_is_given(ctx: Arc<Ctx>) {
    let (clock, client, faulty, _) = clients(&ctx).await;
    faulty.next(Verb::Enter, [Fault::DelayAfter(6 * SECOND)]);
    let lock = tokio::spawn({
        let mutex = client.locks.mutex("a");
        async move { mutex.lock_with(options()).await }
    });
    eventually("it is sent", || std::future::ready(faulty.delayed() == 1)).await;
    clock.advance(6 * SECOND);
    let guard = soon("the answer", lock).await.expect("no panic").expect("lock");
    assert_eq!(faulty.calls(Verb::Renew), 1, "with less than half a lease left it is renewed first");
    assert_eq!(guard.remaining(), LEASE - MARGIN);
}

async fn an_enter_answered_after_its_lease_is_no_grant(ctx: Arc<Ctx>) {
    let (clock, client, faulty, other) = clients(&ctx).await;
    faulty.next(Verb::Enter, [Fault::DelayAfter(LEASE)]);
    let lock = tokio::spawn({
        let mutex = client.locks.mutex("a");
        async move { mutex.lock_with(options()).await }
    });
    eventually("it is sent", || std::future::ready(faulty.delayed() == 1)).await;
    clock.advance(LEASE - Duration::from_millis(1));
    assert!(!lock.is_finished());
    clock.advance(Duration::from_millis(1));
    let outcome = soon("the answer", lock).await.expect("no panic");
    // Either an error, or another, live ticket; never the one whose lease has ended.
    match outcome {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            let next = other.locks.mutex("a").lock().await;
            next.expect("nothing is left of it").release().await.expect("release");
        }
        Ok(guard) => assert_eq!(guard.remaining(), LEASE - MARGIN),
    }
}

async fn the_deadline_counts_from_the_sending_of_the_renewal(ctx: Arc<Ctx>) {
    let (clock, client, faulty, _) = clients(&ctx).await;
    faulty.always(Verb::Renew, Fault::DelayAfter(3 * SECOND));
    let guard = client.locks.mutex("a").lock_with(options()).await.expect("free");
    let entered = clock.now();
    for _ in 0..40 {
        clock.advance(Duration::from_millis(500));
        let now = clock.now();
        // The latest renewal that has been answered by now.
        let sent = faulty.sent(Verb::Renew).into_iter().rfind(|sent| sent.after(3 * SECOND) <= now);
        let deadline = sent.unwrap_or(entered).after(LEASE).before(MARGIN);
        assert_eq!(guard.remaining(), deadline.since(now));
    }
    assert!(faulty.calls(Verb::Renew) > 3);
}

async fn a_grant_does_not_move_the_deadline(ctx: Arc<Ctx>) {
    let (clock, client, faulty, other) = clients(&ctx).await;
    let holder = other.locks.mutex("a").lock().await.expect("free");
    faulty.always(Verb::Renew, Fault::Fail);
    let waiter = tokio::spawn({
        let mutex = client.locks.mutex("a");
        async move { mutex.lock_with(options()).await }
    });
    eventually("it waits", || std::future::ready(faulty.calls(Verb::Wait) == 1)).await;
    clock.advance(4 * SECOND);
    holder.release().await.expect("release");
    let guard = soon("it gets in", waiter).await.expect("no panic").expect("lock");
    assert_eq!(guard.remaining(), LEASE - MARGIN - 4 * SECOND, "counted from the enter, not from the grant");
}

async fn a_grant_with_little_left_is_renewed_first(ctx: Arc<Ctx>) {
    let (clock, client, faulty, other) = clients(&ctx).await;
    let holder = other.locks.mutex("a").lock().await.expect("free");
    faulty.always(Verb::Renew, Fault::Fail);
    let waiter = tokio::spawn({
        let mutex = client.locks.mutex("a");
        async move { mutex.lock_with(options()).await }
    });
    eventually("it waits", || std::future::ready(faulty.calls(Verb::Wait) == 1)).await;
    clock.advance(6 * SECOND);
    faulty.heal();
    holder.release().await.expect("release");
    let guard = soon("it gets in", waiter).await.expect("no panic").expect("lock");
    assert_eq!(guard.remaining(), LEASE - MARGIN);
}

async fn failed_renewals_are_jeopardy_and_pass(ctx: Arc<Ctx>) {
    let (clock, client, faulty, _) = clients(&ctx).await;
    let guard = client.locks.mutex("a").lock_with(options()).await.expect("free");
    for fault in [Fault::Fail, Fault::Drop, Fault::LoseReply] {
        faulty.always(Verb::Renew, fault.clone());
        clock.advance(Duration::from_millis(3500));
        assert_eq!(guard.state(), State::Jeopardy, "{fault:?}");
        clock.advance(2 * SECOND);
        assert_eq!(guard.state(), State::Jeopardy, "{fault:?}: unknown is not lost");
        faulty.heal();
        clock.advance(SECOND);
        assert_eq!(guard.state(), State::Safe, "{fault:?}: it is tried again soon");
        assert!(guard.remaining() > LEASE - MARGIN - SECOND);
    }
    assert_eq!(guard.release().await.expect("release"), Released::Held);
}

async fn overdue_renewals_are_jeopardy(ctx: Arc<Ctx>) {
    let (clock, client, faulty, _) = clients(&ctx).await;
    faulty.always(Verb::Renew, Fault::Blackhole);
    let guard = client.locks.mutex("a").lock_with(options()).await.expect("free");
    clock.advance(5 * SECOND);
    assert_eq!(guard.state(), State::Safe, "not overdue before half of the lease");
    clock.advance(Duration::from_nanos(1));
    assert_eq!(guard.state(), State::Jeopardy);
    faulty.heal();
    clock.advance(Duration::from_millis(4500));
    assert_eq!(guard.state(), State::Safe, "a renewal that is never answered is given up and sent again");
}

async fn without_renewals_it_is_lost_at_the_deadline_and_not_before(ctx: Arc<Ctx>) {
    for fault in [Fault::Fail, Fault::Drop, Fault::LoseReply, Fault::Blackhole, Fault::BlackholeAfter] {
        let (clock, client, faulty, _) = clients(&ctx).await;
        let guard = Arc::new(client.locks.mutex("a").lock_with(options()).await.expect("free"));
        clock.advance(12 * SECOND); // some renewals get through
        let told = tokio::spawn({
            let guard = guard.clone();
            async move { guard.lost().await }
        });
        faulty.always(Verb::Renew, fault.clone());
        let left = guard.remaining();
        let sent = *faulty.sent(Verb::Renew).last().expect("it was renewed");
        assert_eq!(clock.now().after(left), sent.after(LEASE).before(MARGIN));
        clock.advance(left - Duration::from_nanos(1));
        assert_ne!(guard.state(), State::Lost, "{fault:?}: a nanosecond too early");
        assert!(!told.is_finished());
        clock.advance(Duration::from_nanos(1));
        assert_eq!(guard.state(), State::Lost, "{fault:?}");
        soon("it is told", told).await.expect("no panic");
        faulty.heal();
        clock.advance(LEASE);
        assert_eq!(guard.state(), State::Lost, "{fault:?}: lost is for ever");
    }
}

async fn a_renewal_answered_after_the_deadline_does_not_revive(ctx: Arc<Ctx>) {
    let (clock, client, faulty, _) = clients(&ctx).await;
    let guard = client.locks.mutex("a").lock_with(options()).await.expect("free");
    // Renewals fail until shortly before the deadline; the last one is carried out and answered too late.
    faulty.always(Verb::Renew, Fault::Fail);
    clock.advance(8 * SECOND);
    assert_eq!(guard.state(), State::Jeopardy);
    faulty.always(Verb::Renew, Fault::DelayAfter(3 * SECOND));
    let delayed = faulty.delayed();
    while faulty.delayed() == delayed {
        clock.advance(Duration::from_millis(50));
        assert!(guard.state() != State::Lost, "a renewal is tried before the deadline");
    }
    // Stopped meanwhile: the answer and the deadline are both there when the library thread looks again.
    clock.jump(3 * SECOND);
    clock.settle();
    assert_eq!(guard.state(), State::Lost, "the late answer revived it");
    assert_eq!(guard.remaining(), Duration::ZERO);
}

async fn a_stopped_process_finds_itself_lost(ctx: Arc<Ctx>) {
    let (clock, client, faulty, other) = clients(&ctx).await;
    let guard = client.locks.mutex("a").lock_with(options()).await.expect("free");
    faulty.always(Verb::Renew, Fault::DelayAfter(SECOND));
    let delayed = faulty.delayed();
    while faulty.delayed() == delayed {
        clock.advance(Duration::from_millis(100));
    }
    // Stopped with a renewal under way, continued long after the lease.
    clock.jump(60 * SECOND);
    assert_eq!(guard.state(), State::Lost, "at the next line of code");
    let work = std::future::poll_fn(|_| -> std::task::Poll<()> { panic!("run polled past the deadline") });
    assert_eq!(guard.run(work).await.expect_err("lost").kind(), ErrorKind::Lost);
    clock.settle();
    assert_eq!(guard.state(), State::Lost);
    soon("it is told", guard.lost()).await;
    let next = other.locks.mutex("a").try_lock().await.expect("free");
    assert!(next.token() > guard.token());
}

async fn a_renewal_under_way_during_the_release_is_no_loss(ctx: Arc<Ctx>) {
    let (clock, client, faulty, _) = clients(&ctx).await;
    let guard = client.locks.mutex("a").lock_with(options()).await.expect("free");
    faulty.always(Verb::Renew, Fault::DelayBefore(SECOND));
    while faulty.delayed() == 0 {
        clock.advance(Duration::from_millis(100));
    }
    assert_eq!(guard.release().await.expect("release"), Released::Held);
    let next = client.locks.mutex("a").lock_with(options()).await.expect("free");
    clock.advance(2 * SECOND);
    assert_eq!(next.state(), State::Safe, "the answer for the old ticket is not about the new one");
    assert_eq!(next.release().await.expect("release"), Released::Held);
}

async fn a_renewal_under_way_during_an_upgrade_is_no_loss(ctx: Arc<Ctx>) {
    let (clock, client, faulty, _) = clients(&ctx).await;
    let reader = client.locks.rwlock("a").read_with(options()).await.expect("free");
    faulty.always(Verb::Renew, Fault::DelayBefore(SECOND));
    while faulty.delayed() == 0 {
        clock.advance(Duration::from_millis(100));
    }
    let writer = reader.try_upgrade().await.expect("alone");
    faulty.heal();
    clock.advance(20 * SECOND);
    assert_eq!(writer.state(), State::Safe, "the old ticket is gone, the guard is not");
    assert_eq!(writer.release().await.expect("release"), Released::Held);
}

async fn a_waiter_that_cannot_renew_queues_again(ctx: Arc<Ctx>) {
    let (clock, client, faulty, other) = clients(&ctx).await;
    let holder = other.locks.mutex("a").lock().await.expect("free");
    let waiter = tokio::spawn({
        let mutex = client.locks.mutex("a");
        async move { mutex.lock_with(options()).await }
    });
    eventually("it waits", || std::future::ready(faulty.calls(Verb::Wait) == 1)).await;
    let number = other.numbers(&name("a")).await.1[0];
    faulty.always(Verb::Renew, Fault::Drop);
    clock.advance(LEASE);
    faulty.heal();
    eventually("it queues again with a new ticket", || async {
        let waiting = other.numbers(&name("a")).await.1;
        waiting.len() == 1 && waiting[0] > number
    })
    .await;
    holder.release().await.expect("release");
    let guard = soon("it gets in", waiter).await.expect("no panic").expect("lock");
    assert_eq!(guard.state(), State::Safe);
}
