//! The bugs that are planted, each with the tests that must catch it. A test that is worth its place has an entry here:
//! without one nobody knows that it can fail.

use super::Mutant;

/// Every planted bug.
pub(super) const PLANTED: &[Mutant] = &[
    Mutant {
        name: "rule-comparison",
        why: "a writer comes in beside readers",
        file: "crates/fencelock/src/line.rs",
        find: "ahead + u64::from(weight) <= u64::from(capacity)",
        replace: "{ let _ = weight; ahead < u64::from(capacity) }",
        package: "fencelock",
        args: &["--lib"],
        cfg: None,
        tests: &["line::tests::weight_within_capacity"],
    },
    Mutant {
        name: "overtaking-enter",
        why: "whoever does not queue overtakes a waiter, and tokens are granted out of order",
        file: "crates/fencelock/src/line.rs",
        find: "        fits(self.total, weight, capacity)",
        replace: "        fits(self.inside, weight, capacity)",
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["admission::an_enter_that_does_not_queue_overtakes_nobody"],
    },
    Mutant {
        name: "renewal-brings-back",
        why: "a ticket that lapsed comes back to life beside its successor",
        file: "crates/fencelock/src/store/memory.rs",
        find: r#"                    if kept.line.get(ticket.place.id).is_none() {
                        return Renewed::Gone;
                    }
"#,
        replace: r#"                    if kept.line.get(ticket.place.id).is_none() {
                        *last += 1;
                        let (mode, owner, note) = (Mode::Exclusive, OwnerId::new(), Note::default());
                        let facts = Facts { mode, owner, note, entered: now, admitted: None, expiry: now, waker: None };
                        kept.line.enter(ticket.place.id, *last, line::WHOLE, line::WHOLE, true, facts);
                    }
"#,
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["enter::a_renewal_never_brings_back_a_ticket"],
    },
    Mutant {
        name: "leave-without-owner-check",
        why: "a holder that was overtaken releases somebody else's lock",
        file: "crates/fencelock/src/store/memory.rs",
        find: "        match self.line.leave(id) {",
        replace: r#"        let id = match self.line.get(id) {
            Some(_) => id,
            None => self.line.iter().next().map_or(id, |(_, ticket)| ticket.id),
        };
        match self.line.leave(id) {"#,
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["enter::only_the_own_id_leaves"],
    },
    Mutant {
        name: "token-at-the-wrong-moment",
        why: "a token is minted when a waiter is told, not when it entered: it differs from what others see",
        file: "crates/fencelock/src/store/memory.rs",
        find: r#"                let found = self.with_line(&place.name, |kept, now, _, _| {
                    let Some((token, ticket)) = kept.line.get(place.id) else { return Ok(Waited::Gone) };
                    if ticket.admitted {
                        return Ok(Waited::Admitted { token });"#,
        replace: r#"                let found = self.with_line(&place.name, |kept, now, _, last| {
                    let Some((_, ticket)) = kept.line.get(place.id) else { return Ok(Waited::Gone) };
                    if ticket.admitted {
                        *last += 1;
                        return Ok(Waited::Admitted { token: *last });"#,
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["tokens::they_are_the_same_wherever_they_are_told"],
    },
    Mutant {
        name: "upgrade-with-the-old-token",
        why: "a reader that lapsed passes the fence behind the writer",
        file: "crates/fencelock/src/guard.rs",
        find: "if !hold.upgraded(new, token) {",
        replace: "if !hold.upgraded(new, token.min(hold.number())) {",
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["holding::an_upgrade_when_alone", "owners::an_upgrade_is_for_all_guards_of_the_owner"],
    },
    Mutant {
        name: "upgrade-with-the-old-id",
        why: "a change that comes late lowers the ticket of an upgrade: a reader comes in beside the writer",
        file: "crates/fencelock/src/guard.rs",
        find: "    let (old, new) = (hold.place(), TicketId::new());",
        replace: "    let (old, new) = (hold.place(), hold.id());",
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["faults::a_change_that_comes_late_does_not_lower_an_upgrade"],
    },
    Mutant {
        name: "one-mark-fence",
        why: "a paused writer wakes up and writes under a live reader",
        file: "crates/fencelock/src/fence.rs",
        find: "let by = if exclusive { self.exclusive.max(self.shared) } else { self.exclusive };",
        replace: "let by = self.exclusive;",
        package: "fencelock",
        args: &["--lib"],
        cfg: None,
        tests: &["fence::tests::two_marks_over_all_histories"],
    },
    Mutant {
        name: "lost-wake-up",
        why: "whoever was let in sleeps on until something lapses",
        file: "crates/fencelock/src/store/memory.rs",
        find: "                news.wakers.extend(facts.waker.take());",
        replace: "                drop(facts.waker.take());",
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["wait::a_waiter_is_told_within_a_second"],
    },
    Mutant {
        name: "lost-ring",
        why: "a release that is handed over at the wrong moment is never sent",
        file: "crates/fencelock/src/keeper.rs",
        find: "            bell.0 = true;",
        replace: "            bell.0 = bell.1.is_some();",
        package: "fencelock",
        args: &["--no-default-features", "--features", "memory,test-util", "--lib"],
        cfg: Some("fencelock_shuttle"),
        tests: &["shuttle_a_dropped_guard_is_always_released"],
    },
    Mutant {
        name: "deadline-from-the-reply-of-enter",
        why: "a slow answer makes a guard believe that it holds what has lapsed",
        file: "crates/fencelock/src/acquire.rs",
        find: "Ok(answers) => break (sent, answers.into_iter().next()),",
        replace: "Ok(answers) => break (keeper.clock.now(), answers.into_iter().next()),",
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["deadlines::the_deadline_counts_from_the_sending_of_the_enter"],
    },
    Mutant {
        name: "deadline-from-the-reply-of-renew",
        why: "the same, at every renewal",
        file: "crates/fencelock/src/keeper.rs",
        find: "                            if hold.confirm(sent, lease) && late {",
        replace: "                            if hold.confirm(self.clock.now(), lease) && late {",
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["deadlines::the_deadline_counts_from_the_sending_of_the_renewal"],
    },
    Mutant {
        name: "push-moves-the-deadline",
        why: "a grant that was long under way looks fresh",
        file: "crates/fencelock/src/acquire.rs",
        find: r#"                Either::Left((Ok(Waited::Admitted { token }), _)) => {
                    self.hold.set_number(token);"#,
        replace: r#"                Either::Left((Ok(Waited::Admitted { token }), _)) => {
                    self.hold.confirm(keeper.clock.now(), self.request.terms.lease);
                    self.hold.set_number(token);"#,
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["deadlines::a_grant_does_not_move_the_deadline"],
    },
    Mutant {
        name: "repeated-enter-without-refresh",
        why: "a reply that was lost for most of a lease is answered with a lease that is about to end",
        file: "crates/fencelock/src/store/memory.rs",
        find: "        let lease = self.extend(ticket.place.id, lease, now);",
        replace: r#"        let old = self.line.get(ticket.place.id).is_some_and(|(_, there)| there.facts.expiry > now);
        let lease = if old { lease } else { self.extend(ticket.place.id, lease, now) };"#,
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["enter::a_repeated_enter_refreshes_the_expiry"],
    },
    Mutant {
        name: "cancelled-waiter-keeps-its-ticket",
        why: "everybody waits behind somebody who went away",
        file: "crates/fencelock/src/acquire.rs",
        find: r#"        if self.open {
            self.hold.start_leaving();"#,
        replace: r#"        if self.open && !self.queued {
            self.hold.start_leaving();"#,
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["cancelling::lock"],
    },
    Mutant {
        name: "forgotten-orphan",
        why: "an enter that was cancelled and is carried out late blocks the name for a lease",
        file: "crates/fencelock/src/keeper.rs",
        find: "        if now < leave.unanswered {",
        replace: "        if now > leave.unanswered {",
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["faults::a_cancelled_enter_that_is_carried_out_later_is_taken_back"],
    },
    Mutant {
        name: "forgotten-release",
        why: "a release that was cancelled half-way is never sent",
        file: "crates/fencelock/src/keeper.rs",
        find: "        self.leaves.drain(..).for_each(|leave| self.keeper.leave(leave));",
        replace: "        self.leaves.clear();",
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["cancelling::release", "cancelling::a_cancelled_flush_forgets_no_other_release"],
    },
    Mutant {
        name: "no-release-without-a-runtime",
        why: "a guard that is dropped after its runtime has ended is held for a lease",
        file: "crates/fencelock/src/guard.rs",
        find: "        if self.armed {",
        replace: "        if self.armed && tokio::runtime::Handle::try_current().is_ok() {",
        package: "fencelock",
        args: &["--test", "conformance_memory"],
        cfg: None,
        tests: &["runtimes::a_guard_dropped_after_its_runtime_has_ended_is_released"],
    },
    Mutant {
        name: "no-look-after-the-subscription",
        why: "a waiter in a cluster whose grant came before its subscription sleeps on",
        file: "crates/fencelock/src/store/redis/cluster/listen.rs",
        find: "            Some((name, false)) => self.waiters.doubt_line(&name, self.clock.now()),",
        replace: "            Some((_, false)) => {}",
        package: "fencelock",
        args: &["--features", "redis", "--test", "redis_store"],
        cfg: None,
        tests: &["cluster::a_grant_that_comes_before_the_subscription_is_found"],
    },
    Mutant {
        name: "one-node-costs-all",
        why: "a node of a cluster that is down costs the locks on all others",
        file: "crates/fencelock/src/store/redis/cluster/route.rs",
        find: "    if any { Ok(answers) }",
        replace: "    if any && failed.is_none() { Ok(answers) }",
        package: "fencelock",
        args: &["--features", "redis", "--test", "redis_store"],
        cfg: None,
        tests: &["cluster::a_node_that_is_down_costs_only_its_own_locks"],
    },
];
