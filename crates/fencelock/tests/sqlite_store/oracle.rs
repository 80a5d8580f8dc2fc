//! Random histories, on two clients of one file and on the memory store, with one clock for all: the same answers.

use super::*;
use fencelock::VirtualClock;
use fencelock::store::memory::MemoryStore;
use fencelock::store::{Line, Upgraded};
use proptest::prelude::*;

const NAMES: [&str; 2] = ["a", "b/c"];
const IDS: usize = 6;

#[derive(Clone, Debug)]
enum Act {
    Enter { id: usize, weight: u32, queue: bool, lease: u64 },
    EnterBoth { id: usize, weight: u32, queue: bool },
    Leave { id: usize },
    Renew { id: usize, lease: u64 },
    Change { id: usize, weight: u32 },
    Upgrade { id: usize, new: usize },
    Expel { id: usize },
    Look { id: usize },
    Pass { seconds: u64 },
}

fn act() -> impl Strategy<Value = Act> {
    let id = || 0..IDS;
    prop_oneof![
        6 => (id(), 1u32..4, any::<bool>(), 1u64..50).prop_map(|(id, weight, queue, lease)| Act::Enter { id, weight, queue, lease }),
        1 => (id(), 1u32..4, any::<bool>()).prop_map(|(id, weight, queue)| Act::EnterBoth { id, weight, queue }),
        4 => id().prop_map(|id| Act::Leave { id }),
        2 => (id(), 1u64..50).prop_map(|(id, lease)| Act::Renew { id, lease }),
        2 => (id(), 1u32..4).prop_map(|(id, weight)| Act::Change { id, weight }),
        1 => (id(), id()).prop_map(|(id, new)| Act::Upgrade { id, new }),
        1 => id().prop_map(|id| Act::Expel { id }),
        2 => id().prop_map(|id| Act::Look { id }),
        2 => (1u64..20).prop_map(|seconds| Act::Pass { seconds }),
    ]
}

/// One store of the two, with the numbers it gave to each ticket: numbers differ between stores, their order must not.
struct Side<'a> {
    stores: Vec<&'a dyn Store>,
    turn: usize,
}

/// What a line looks like without its numbers.
fn picture(line: &Line) -> String {
    let tickets = |list: &[fencelock::store::Seen]| {
        let shown = |seen: &fencelock::store::Seen| {
            let (owner, expires) = (&seen.owner[..4], seen.expires_in.unwrap().as_secs());
            format!("{owner} {} {} {expires} {}", seen.mode, seen.weight, seen.entered.unwrap().as_secs())
        };
        list.iter().map(shown).collect::<Vec<_>>().join(", ")
    };
    let numbers: Vec<u64> = line.inside.iter().chain(&line.waiting).map(|seen| seen.token.unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    format!("{}: [{}] [{}]", line.capacity, tickets(&line.inside), tickets(&line.waiting))
}

impl Side<'_> {
    /// Every act comes from another client.
    fn next(&mut self) -> &dyn Store {
        self.turn += 1;
        self.stores[self.turn % self.stores.len()]
    }

    async fn act(&mut self, act: &Act, capacity: u32, ids: &[TicketId], now: fencelock::clock::Moment) -> String {
        let on = |id: usize, name: usize| Place { name: super::name(NAMES[name]), id: ids[id] };
        let entry = |id: usize, name: usize, weight: u32, queue: bool, lease: u64| {
            let weight = if capacity == WHOLE && weight == 3 { WHOLE } else { weight };
            let mut entry = ticket(&on(id, name), weight, capacity, queue);
            entry.owner = OwnerId::from_bytes(*ids[id].as_bytes());
            entry.lease = Duration::from_secs(lease);
            entry
        };
        let line = id_line;
        let told = match *act {
            Act::Enter { id, weight, queue, lease } => {
                let answer = self.next().enter(&[entry(id, line(id), weight, queue, lease)]).await;
                answer.map_or_else(|error| format!("{:?}", error.kind()), |answers| spoken(&answers))
            }
            Act::EnterBoth { id, weight, queue } => {
                let other = (id + 1) % IDS;
                let batch = [entry(id, line(id), weight, queue, 20), entry(other, line(other), weight, queue, 20)];
                let answer = self.next().enter(&batch).await;
                answer.map_or_else(|error| format!("{:?}", error.kind()), |answers| spoken(&answers))
            }
            Act::Leave { id } => format!("{:?}", self.next().leave(&[on(id, line(id))]).await.unwrap()),
            Act::Renew { id, lease } => {
                let renew = Renew { place: on(id, line(id)), lease: Duration::from_secs(lease), at_least: None };
                format!("{:?}", self.next().renew(&[renew]).await.unwrap())
            }
            Act::Change { id, weight } => {
                format!("{:?}", self.next().change(&on(id, line(id)), Some(weight), None).await.unwrap())
            }
            Act::Upgrade { id, new } => {
                let new = if line(new) == line(id) { new } else { id };
                match self.next().upgrade(&on(id, line(id)), ids[new]).await.unwrap() {
                    Upgraded::Admitted { .. } => "admitted".to_string(),
                    Upgraded::Held { by } => format!("held by {:?}", by.map(|seen| seen.owner)),
                    Upgraded::Gone => "gone".to_string(),
                }
            }
            Act::Expel { id } => {
                let name = super::name(NAMES[line(id)]);
                let there = self.next().inspect(&name).await.unwrap();
                let owner = OwnerId::from_bytes(*ids[id].as_bytes()).to_string();
                let token = there.inside.iter().chain(&there.waiting).find(|seen| seen.owner == owner);
                format!("{:?}", self.next().expel(&name, token.map_or(0, |seen| seen.token.unwrap())).await.unwrap())
            }
            Act::Look { id } => match self.next().wait(&on(id, line(id)), now).await.unwrap() {
                Waited::Admitted { .. } => "admitted".to_string(),
                other => format!("{other:?}"),
            },
            Act::Pass { .. } => String::new(),
        };
        let mut pictures = vec![told];
        for name in NAMES {
            pictures.push(picture(&self.next().inspect(&super::name(name)).await.unwrap()));
        }
        let listed = self.next().list("", None, 10).await.unwrap();
        pictures.extend(listed.iter().map(|line| format!("{} {} {}", line.name, line.inside, line.waiting)));
        pictures.join("\n")
    }
}

/// Even ids stand in the first line, odd ones in the second.
fn id_line(id: usize) -> usize {
    id % 2
}

fn spoken(answers: &[Entered]) -> String {
    let seen = |seen: &Option<fencelock::store::Seen>| seen.as_ref().map(|seen| seen.owner.clone());
    let answers = answers.iter().map(|answer| match answer {
        Entered::Admitted { lease, .. } => format!("admitted for {lease:?}"),
        Entered::Queued { lease, ahead, .. } => format!("queued for {lease:?} behind {:?}", seen(ahead)),
        Entered::Full { holder } => format!("full of {:?}", seen(holder)),
    });
    answers.collect::<Vec<_>>().join(", ")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn two_clients_of_a_file_answer_as_the_reference_does(
        acts in proptest::collection::vec(act(), 1..60),
        capacity in prop_oneof![Just(WHOLE), Just(3u32)],
    ) {
        let (_folder, file) = folder();
        let clock = VirtualClock::new();
        let open = || SqliteStore::open_in_boot(&file, "boot", clock.clock()).unwrap();
        let (one, other, memory) = (open(), open(), MemoryStore::with_clock(clock.clock()));
        let ids: Vec<TicketId> = (0..IDS).map(|_| TicketId::new()).collect();
        let mut ours = Side { stores: vec![&one, &other], turn: 0 };
        let mut theirs = Side { stores: vec![&memory], turn: 0 };
        block_on(async {
            for (step, act) in acts.iter().enumerate() {
                if let Act::Pass { seconds } = act {
                    clock.advance(Duration::from_secs(*seconds));
                }
                let now = clock.now();
                let (got, wanted) = (ours.act(act, capacity, &ids, now).await, theirs.act(act, capacity, &ids, now).await);
                assert_eq!(got, wanted, "step {step} {act:?} of {acts:?}");
            }
        });
    }
}
