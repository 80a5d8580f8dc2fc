//! The properties in the header of `line.rs`, one by one: over all histories of up to four tickets, and over long random
//! ones. Beside them, [`Line`] is compared with the naive line of `line/model.rs` after every act.

use super::model::*;
use super::*;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestError, TestRunner};
use std::cell::Cell;

macro_rules! ensure {
    ($right:expr, $($wrong:tt)+) => {
        if !$right {
            return Err(format!($($wrong)+));
        }
    };
}

/// Not one of the seven: whatever is seen of the line is what the naive line shows, and what it keeps for speed is true.
fn same_as_naive(step: &Step, world: &World) -> Result<(), String> {
    ensure!(step.answer == step.expected, "answered {:?}, naive {:?}", step.answer, step.expected);
    ensure!(step.after == world.naive.slips, "the line is not as the naive one: {:?}", world.naive.slips);
    let (line, slips) = (&world.line, &step.after);
    let inside: Vec<Slip> = slips.iter().filter(|slip| slip.admitted).copied().collect();
    ensure!(line.inside == weight_of(&inside), "inside is {}, not {}", line.inside, weight_of(&inside));
    ensure!(line.total == weight_of(slips), "total is {}, not {}", line.total, weight_of(slips));
    ensure!(line.frontier == world.granted, "frontier is {}, not {}", line.frontier, world.granted);
    ensure!(line.len() == slips.len() && line.is_empty() == slips.is_empty(), "len is {}", line.len());
    ensure!(line.numbers.len() == slips.len(), "ids left over: {:?}", line.numbers);
    ensure!(line.capacity() == slips.first().map(|head| head.wish.capacity), "capacity is {:?}", line.capacity());
    for id in 0..=world.next {
        let there = line.get(id).map(|(number, ticket)| (number, ticket.id, ticket.weight, ticket.facts));
        let slip = slips.iter().find(|slip| slip.id == id);
        let wanted = slip.map(|slip| (slip.number, slip.id, slip.wish.weight, slip.wish.kind));
        ensure!(there == wanted, "get({id}) is {there:?}, not {wanted:?}");
    }
    if let Act::Enter { wish, .. } = step.act {
        let mut with_me = world.naive.slips.clone();
        with_me.push(Slip { id: world.next, number: u64::MAX, wish, admitted: false });
        let room = weight_of(&with_me) <= u64::from(wish.capacity);
        ensure!(line.has_room(wish.weight, wish.capacity) == room, "has_room is not {room}");
    }
    Ok(())
}

/// 1. The admitted weight never exceeds the capacity.
fn weight_within_capacity(step: &Step, _: &World) -> Result<(), String> {
    let inside: Vec<Slip> = step.after.iter().filter(|slip| slip.admitted).copied().collect();
    for slip in &inside {
        ensure!(weight_of(&inside) <= u64::from(slip.wish.capacity), "{} is inside {slip:?}", weight_of(&inside));
    }
    Ok(())
}

/// 2. An admission is never revoked by somebody else's arrival, departure, downgrade or upgrade; nor is anything else of
///    their tickets touched, except that they may come in.
fn admission_never_revoked(step: &Step, _: &World) -> Result<(), String> {
    let acted = match step.act {
        Act::Enter { .. } => None,
        Act::Leave(id) | Act::Change(id, _) | Act::Upgrade(id) => Some(id),
    };
    for was in &step.before {
        let is = step.after.iter().find(|is| is.id == was.id);
        if Some(was.id) != acted {
            ensure!(is.is_some(), "{was:?} was thrown out");
        }
        if let Some(is) = is {
            ensure!(is.admitted || !was.admitted, "{was:?} was put back to wait");
            ensure!(
                (is.number, is.wish.capacity, is.wish.kind) == (was.number, was.wish.capacity, was.wish.kind),
                "{is:?}"
            );
            ensure!(Some(was.id) == acted || is.wish.weight == was.wish.weight, "{was:?} is now {is:?}");
        }
    }
    Ok(())
}

/// 3. Admission is in ticket order, so nobody starves: those inside are in front of those who wait, nobody comes in with a
///    smaller number than somebody before, and the head is always inside, so that each leave of the head brings everyone
///    behind it one nearer.
fn admission_in_order(step: &Step, world: &World) -> Result<(), String> {
    let waiting = step.after.iter().skip_while(|slip| slip.admitted);
    ensure!(waiting.clone().all(|slip| !slip.admitted), "somebody is inside behind a waiting one");
    ensure!(step.after.first().is_none_or(|head| head.admitted), "nobody is inside");
    let mut last = step.granted;
    for slip in step.newly() {
        ensure!(slip.number > last, "{slip:?} came in after {last}");
        last = slip.number;
    }
    let told = match &step.answer {
        Answer::Left(Some((_, newly))) | Answer::Changed(Some(newly)) => newly.clone(),
        Answer::Entered(Entry::Admitted) | Answer::Raised(Raise::Admitted) => vec![step.offered.0],
        _ => Vec::new(),
    };
    ensure!(told.iter().eq(step.newly().map(|slip| &slip.id)), "told of {told:?}, and not of those who came in");
    // Nobody who could come in is left outside: with no weight ahead of them but that of the admitted, they do not fit.
    if let Some(first) = waiting.clone().next() {
        let inside = weight_of(&step.after[..world.line.len() - waiting.count()]);
        ensure!(inside + u64::from(first.wish.weight) > u64::from(first.wish.capacity), "{first:?} waits for nothing");
    }
    Ok(())
}

/// 4. A ticket's number is larger than every earlier one of its line, and is its own for as long as it lives.
fn numbers_grow(step: &Step, _: &World) -> Result<(), String> {
    ensure!(step.after.windows(2).all(|pair| pair[0].number < pair[1].number), "the line is not in order");
    for slip in &step.after {
        // What was not there before has the number of this act, which is larger than all that were ever handed out.
        let fresh = step.before.iter().all(|was| was.id != slip.id);
        ensure!(!fresh || (slip.id, slip.number) == step.offered, "{slip:?} is new");
        ensure!(slip.number == World::number(slip.id), "{slip:?} changed its number");
        ensure!(!fresh || slip.number > step.granted, "{slip:?} is not above {}", step.granted);
    }
    Ok(())
}

/// 5. A decision made on a stale picture of the line is right as long as the decider's own ticket is still alive.
fn stale_picture_is_right(step: &Step, world: &World) -> Result<(), String> {
    for (at, slip) in step.after.iter().enumerate() {
        let Wish { weight, capacity, .. } = slip.wish;
        let now = admits(step.after[..at].iter().map(|ahead| ahead.wish.weight), weight, capacity);
        ensure!(now == slip.admitted, "on the present line admits says {now} of {slip:?}");
        // A client that has read any earlier line knows its own weight as it was then, or as it is now.
        let Sight { least_ahead, believed } = world.sights[&slip.id];
        let believed = believed || fits(least_ahead, weight, capacity);
        ensure!(slip.admitted || !believed, "with {least_ahead} ahead, {slip:?} was taken to be inside");
    }
    Ok(())
}

/// 6. An enter that does not queue never overtakes a waiting ticket, and never waits.
fn no_overtaking(step: &Step, _: &World) -> Result<(), String> {
    let Act::Enter { wish, queue } = step.act else { return Ok(()) };
    let mine = step.after.iter().find(|slip| slip.id == step.offered.0);
    match step.answer {
        Answer::Entered(Entry::Admitted) => {
            ensure!(step.after.iter().all(|slip| slip.admitted), "somebody was overtaken");
            ensure!(mine.is_some_and(|mine| mine.wish == wish), "entered as {mine:?}");
        }
        Answer::Entered(Entry::Queued) => {
            ensure!(queue && mine.is_some_and(|mine| !mine.admitted), "queued as {mine:?}")
        }
        Answer::Entered(Entry::Full) => {
            let ahead = step.before.iter().map(|slip| slip.wish.weight);
            ensure!(!queue && step.before == step.after, "full, and yet something changed");
            ensure!(!admits(ahead, wish.weight, wish.capacity), "refused although there was room");
        }
        Answer::Entered(Entry::Mismatch { there }) => {
            ensure!(step.before == step.after, "refused, and yet something changed");
            ensure!(step.before[0].wish.capacity == there && there != wish.capacity, "the head has no {there}");
        }
        _ => return Err("not the answer of an enter".into()),
    }
    Ok(())
}

/// 7. Weights only go down; an upgrade happens only when the ticket is alone in the line, and takes a new id and number.
fn weights_only_go_down(step: &Step, world: &World) -> Result<(), String> {
    for (was, is) in step.kept() {
        ensure!(is.wish.weight <= was.wish.weight, "{was:?} is now {is:?}");
    }
    let there = |id| step.before.iter().any(|slip| slip.id == id);
    match (step.act, &step.answer) {
        (Act::Change(id, weight), Answer::Changed(Some(_))) => {
            let (was, is) = step.kept().find(|(was, _)| was.id == id).ok_or("changed, and not there")?;
            ensure!(is.wish.weight == was.wish.weight.min(weight), "{was:?} is now {is:?}");
        }
        (Act::Upgrade(id), Answer::Raised(Raise::Admitted)) => {
            ensure!(step.before.len() == 1 && there(id), "upgraded beside others");
            let [new] = step.after[..] else { return Err("not alone after the upgrade".into()) };
            ensure!(new.id != id && new.number > step.before[0].number, "{new:?} is not new");
            let Wish { kind, capacity, .. } = step.before[0].wish;
            ensure!(new.admitted && new.wish == Wish { kind, weight: capacity, capacity }, "{new:?}");
            // A late or repeated act of the old id hits nothing.
            for late in [Act::Change(id, 1), Act::Leave(id), Act::Upgrade(id)] {
                let mut after = world.clone();
                let hit = after.step(late).answer;
                let nothing = [Answer::Changed(None), Answer::Left(None), Answer::Raised(Raise::Gone)].contains(&hit);
                ensure!(nothing && after.slips() == step.after, "{late:?} after the upgrade hit {hit:?}");
            }
        }
        (Act::Upgrade(id), Answer::Raised(Raise::Held)) => {
            ensure!(step.before.len() > 1 && there(id) && step.before == step.after, "held, and yet something changed");
        }
        (
            Act::Upgrade(id) | Act::Change(id, _) | Act::Leave(id),
            Answer::Raised(_) | Answer::Changed(_) | Answer::Left(None),
        ) => {
            ensure!(!there(id) && step.before == step.after, "gone, and yet something changed");
        }
        (Act::Leave(id), Answer::Left(Some((slip, _)))) => {
            ensure!(slip.id == id && step.before.contains(slip), "{slip:?} left");
            ensure!(step.after.iter().all(|slip| slip.id != id), "{slip:?} left and is still there");
        }
        _ => {}
    }
    Ok(())
}

/// One act of a random history. Which ticket is meant is counted back from the newest, since the old ones are mostly gone.
#[derive(Clone, Debug)]
enum Draw {
    Enter { wish: Index, queue: bool },
    Leave { back: Id },
    Change { back: Id, weight: Index },
    Upgrade { back: Id },
}

impl Draw {
    fn resolve(&self, scope: &Scope, world: &World) -> Act {
        let id = |back: &Id| world.next.saturating_sub(1 + back);
        match self {
            Draw::Enter { wish, queue } => Act::Enter { wish: *wish.get(&scope.wishes), queue: *queue },
            Draw::Leave { back } => Act::Leave(id(back)),
            Draw::Change { back, weight } => Act::Change(id(back), *weight.get(&scope.weights)),
            Draw::Upgrade { back } => Act::Upgrade(id(back)),
        }
    }
}

fn draws() -> impl Strategy<Value = Vec<Draw>> {
    let draw = prop_oneof![
        4 => (any::<Index>(), prop::bool::weighted(0.8)).prop_map(|(wish, queue)| Draw::Enter { wish, queue }),
        4 => (0..8u8).prop_map(|back| Draw::Leave { back }),
        1 => (0..6u8, any::<Index>()).prop_map(|(back, weight)| Draw::Change { back, weight }),
        1 => (0..2u8).prop_map(|back| Draw::Upgrade { back }),
    ];
    prop::collection::vec(draw, 1..80)
}

/// Holds random histories of locks and of semaphores of up to six to the property.
fn at_random(property: Property) {
    let scopes = prop_oneof![Just(Scope::locks(80)), (1..7u32).prop_map(|capacity| Scope::semaphore(capacity, 80))];
    let (waited, upgraded, full) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let count = |of: &Cell<usize>, when| of.set(of.get() + usize::from(when));
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(128) });
    let outcome = runner.run(&(scopes, draws()), |(scope, draws)| {
        let mut world = World::default();
        for draw in draws {
            let step = world.step(draw.resolve(&scope, &world));
            property(&step, &world).map_err(|wrong| TestCaseError::fail(format!("{wrong}\nin {step:#?}")))?;
            count(&waited, step.answer == Answer::Entered(Entry::Queued));
            count(&upgraded, step.answer == Answer::Raised(Raise::Admitted));
            count(&full, step.answer == Answer::Entered(Entry::Full));
        }
        Ok(())
    });
    match outcome {
        Err(TestError::Fail(why, (scope, draws))) => {
            panic!("{why}\nthe shortest such history of {scope:?}: {draws:#?}")
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
        Ok(()) => {}
    }
    // About 128 * 40 acts, of which many hundreds queue: far fewer would mean that nothing was tried.
    assert!(waited.get() > 200 && upgraded.get() > 20 && full.get() > 20, "{waited:?} {upgraded:?} {full:?}");
}

/// Holds all histories of four tickets to the property. The counts are exact: a world more or less is worth a look.
fn over_all_histories(property: Property) {
    assert_eq!(explore(&Scope::locks(4), property), Seen { worlds: 1836, steps: 24296 });
    for (capacity, worlds, steps) in [(1, 81, 769), (2, 204, 2754), (3, 471, 8228)] {
        assert_eq!(
            explore(&Scope::semaphore(capacity, 4), property),
            Seen { worlds, steps },
            "semaphore of {capacity}"
        );
    }
}

/// Two tests for each property.
macro_rules! properties {
    ($($name:ident)+) => {
        $(mod $name {
            #[test]
            fn over_all_histories_of_four_tickets() {
                super::over_all_histories(super::$name);
            }

            #[test]
            fn over_random_histories() {
                super::at_random(super::$name);
            }
        })+
    };
}

properties! {
    same_as_naive
    weight_within_capacity
    admission_never_revoked
    admission_in_order
    numbers_grow
    stale_picture_is_right
    no_overtaking
    weights_only_go_down
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::with_cases(64) })]

    /// Property 5 once more, word by word: every picture ever taken is kept, and asked again after every act.
    #[test]
    fn every_earlier_picture_is_right(capacity in 1..5u32, locks: bool, draws in draws()) {
        let scope = if locks { Scope::locks(80) } else { Scope::semaphore(capacity, 80) };
        let (mut world, mut pictures) = (World::default(), Vec::<Vec<Slip>>::new());
        for draw in draws {
            let now = world.step(draw.resolve(&scope, &world)).after;
            pictures.push(now.clone());
            for picture in &pictures {
                for (at, then) in picture.iter().enumerate() {
                    let ahead = picture[..at].iter().map(|slip| slip.wish.weight);
                    let believed = admits(ahead, then.wish.weight, then.wish.capacity);
                    prop_assert_eq!(believed, then.admitted);
                    if let Some(me) = now.iter().find(|slip| slip.id == then.id) {
                        prop_assert!(me.admitted || !believed, "{:?} believed {:?}", me, picture);
                    }
                }
            }
        }
    }

    /// A stray ticket, whatever its weight, can only delay: who is admitted with it ahead is admitted without it.
    #[test]
    fn a_stray_ticket_only_delays(ahead in prop::collection::vec(0..4u32, 0..4), stray in 0..=WHOLE, weight in 0..4u32) {
        for capacity in 1..12 {
            let with = admits(ahead.iter().copied().chain([stray]), weight, capacity);
            let without = admits(ahead.iter().copied(), weight, capacity);
            prop_assert!(without || !with);
            prop_assert_eq!(without, ahead.iter().sum::<u32>() + weight <= capacity);
        }
    }
}

/// Sums do not wrap, however long the line.
#[test]
fn a_long_line_does_not_overflow() {
    assert!(!admits([u32::MAX; 3], u32::MAX, u32::MAX));
    assert!(admits([], u32::MAX, u32::MAX));
}

/// A store that decides in the client may hold a stray ticket behind the head. It does not count in a mismatch.
#[test]
fn a_mismatch_is_judged_against_the_head() {
    let mut line = Line::<Id, ()>::default();
    assert_eq!(line.enter(0, 1, 2, 3, true, ()), Entry::Admitted);
    let stray = Ticket { id: 1, weight: 5, capacity: 5, admitted: false, facts: () };
    line.tickets.insert(2, stray);
    line.numbers.insert(1, 2);
    line.total += 5;
    assert_eq!(line.enter(2, 3, 1, 5, true, ()), Entry::Mismatch { there: 3 });
    assert_eq!(line.enter(2, 3, 1, 3, false, ()), Entry::Full, "the stray one counts");
    assert_eq!(line.enter(2, 3, 1, 3, true, ()), Entry::Queued);
    let (_, newly) = line.leave(0).unwrap();
    assert_eq!(newly, [1], "by its own capacity");
    assert_eq!(line.enter(3, 4, 1, 3, true, ()), Entry::Mismatch { there: 5 });
    assert_eq!(line.enter(3, 4, 1, 5, true, ()), Entry::Queued);
    assert_eq!(line.leave(1).unwrap().1, [2, 3]);
}

/// A number that was granted before is never granted again, not even when the line has been empty since.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "numbers grow")]
fn a_granted_number_is_not_taken_twice() {
    let mut line = Line::<Id, ()>::default();
    line.enter(0, 7, 1, 1, true, ());
    line.leave(0);
    line.enter(1, 7, 1, 1, true, ());
}

/// What a keeper remembers of a ticket can be changed in place, and is that of the ticket meant.
#[test]
fn facts_are_changed_in_place() {
    let mut line = Line::<Id, u32>::default();
    line.enter(0, 1, 1, 2, true, 10);
    line.enter(1, 2, 1, 2, true, 20);
    *line.facts_mut(1).unwrap() += 1;
    assert_eq!(line.iter().map(|(_, ticket)| ticket.facts).collect::<Vec<_>>(), [10, 21]);
    assert!(line.facts_mut(2).is_none());
}
