//! The names of nodes: ours and Curator's are read back, everybody else's are told apart.

use super::*;
use proptest::prelude::*;

const CURATOR: &str = "_c_0b3f1c2a-0000-4000-8000-00000000000a-lock-0000000007";

fn seats(children: &[&str]) -> Seats {
    Seats::read(children.iter().map(ToString::to_string).collect())
}

#[test]
fn what_is_written_is_read_back() {
    for (kind, weight, capacity) in [
        (Kind::Mutex, WHOLE, WHOLE),
        (Kind::Leader, WHOLE, WHOLE),
        (Kind::Write, WHOLE, WHOLE),
        (Kind::Read, 1, WHOLE),
        (Kind::Permits, 2, 5),
        (Kind::Permits, 5, 5),
        (Kind::Permits, WHOLE - 1, WHOLE - 1),
    ] {
        let id = TicketId::new();
        let path = prefix("/a/b", id, kind, weight, capacity) + "0000000042";
        let child = path.strip_prefix("/a/b/").unwrap();
        let line = seats(&[child]);
        let seat = &line.all()[0];
        assert_eq!((seat.id, seat.weight, seat.capacity, seat.order), (id, weight, capacity, 42), "{child}");
        assert_eq!(seat.kind.mode(), kind.mode());
        assert!(digits(child).is_some() && line.foreign.is_empty() && line.below.is_empty());
    }
}

#[test]
fn other_recipes_are_foreign_and_names_are_names() {
    let foreign = [
        "00112233445566778899aabbccddeeff__lock__0000000001",
        "lock-0000000001",
        "read-0000000001",
        "x-72057594037927936-0000000001",
        "_c_0b3f1c2a-0000-4000-8000-00000000000a-latch-0000000001",
        "_c_0b3f1c2a-0000-4000-8000-00000000000a-lease-0000000001",
        "_c_0b3f1c2a-0000-4000-8000-00000000000a-permit-0of3-0000000001",
        "_c_0b3f1c2a-0000-4000-8000-00000000000a-permit-4of3-0000000001",
        "_c_0b3f1c2a-0000-4000-8000-00000000000a-permit-+1of3-0000000001",
        "_c_0b3f1c2a-0000-4000-8000-00000000000a-permit-1of1048576-0000000001",
        "_c_0b3f1c2a-0000-4000-8000-0000000000+a-lock-0000000001",
    ];
    for child in foreign {
        assert_eq!(seats(&[child]).foreign, [child]);
    }
    for child in ["b", "locks", "leases", "lock-1", "2026-11-16", "é-0000000001x", "%x", "0000000001"] {
        assert_eq!(seats(&[child]).below, [child]);
    }
    assert_eq!(seats(&[CURATOR]).all().len(), 1);
}

#[test]
fn the_server_s_own_nodes_are_nobody_s_lock() {
    for (name, path) in [("zookeeper", "/%zookeeper"), ("zookeeper/quota/x", "/%zookeeper/quota/x")] {
        let name = Name::new("", name).unwrap();
        assert_eq!(line_path(&name).unwrap(), path);
        assert_eq!(line_key(path), Some(name.key()));
    }
    for name in ["zookeepers", "a/zookeeper", "a b"] {
        let name = Name::new("", name).unwrap();
        assert_eq!(line_key(&line_path(&name).unwrap()), Some(name.key()));
    }
    assert_eq!(line_key("/zookeeper/quota"), None);
    assert_eq!(line_path(&Name::from_key(&"x".repeat(2000), None)).unwrap_err().kind(), ErrorKind::InvalidName);
}

/// A child with this marker and number.
fn child(marker: &str, number: u32) -> String {
    format!("_c_{}-{marker}{number:010}", uuid(TicketId::new()))
}

#[test]
fn readers_watch_the_writer_ahead_and_writers_their_neighbour() {
    let [w1, r2, r3, w4, m5] =
        [("__WRIT__", 1), ("__READ__", 2), ("__READ__", 3), ("__WRIT__", 4), ("lock-", 5)].map(|(m, n)| child(m, n));
    let line = seats(&[&m5, &w4, &r3, &r2, &w1]);
    let blocker = |child: &String| line.blocker(child).map(|seat| seat.child.clone());
    assert_eq!(
        [&w1, &r2, &r3, &w4, &m5].map(blocker),
        [None, Some(w1.clone()), Some(w1.clone()), Some(r3.clone()), Some(w4.clone())]
    );
    assert_eq!(line.inside(), 1);
    let line = seats(&[&m5, &w4, &r3, &r2]);
    assert_eq!((line.inside(), line.standing(&r3), line.standing(&w4)), (2, Standing::Inside, Standing::Waiting));
    assert_eq!(line.standing(&w1), Standing::Gone);
}

#[test]
fn a_downgraded_ticket_keeps_its_number_in_its_data() {
    let id = TicketId::new();
    let path = prefix("", id, Kind::Read, 1, WHOLE) + "0000000003";
    let line = seats(&[&path[1..]]);
    let mut record = Record::foreign("x", b"");
    record.lower(1);
    let kept = ticket(&line.all()[0], 99, &data(&record, Some(17))).unwrap();
    assert_eq!((kept.token, kept.record.weight, kept.id), (Some(17), 1, Some(id)));
    let fresh = ticket(&line.all()[0], 99, &data(&record, None)).unwrap();
    assert_eq!(fresh.token, Some(99));
    // What another client says there is no number of ours.
    let curator = ticket(&seats(&[CURATOR]).all()[0], 5, b"10.0.0.7").unwrap();
    assert_eq!((curator.token, curator.record.note.value.as_deref()), (Some(5), Some("10.0.0.7")));
}

proptest! {
    #[test]
    fn the_line_is_decided_by_the_rule(kinds in prop::collection::vec(0u8..3, 0..8), capacity in 1u32..4) {
        // Locks, or a semaphore: weights drawn from what fits.
        for permits in [false, true] {
            let children: Vec<String> = kinds.iter().enumerate().map(|(i, kind)| {
                let marker = match (permits, kind) {
                    (true, k) => format!("permit-{}of{capacity}-", u32::from(*k) % capacity + 1),
                    (false, 0) => "lock-".into(),
                    (false, 1) => "__WRIT__".into(),
                    (false, _) => "__READ__".into(),
                };
                child(&marker, u32::try_from(i).unwrap())
            }).collect();
            let mut shuffled: Vec<&str> = children.iter().map(String::as_str).collect();
            shuffled.reverse();
            let read = seats(&shuffled);
            let mut line = line::Line::default();
            for (i, seat) in read.all().iter().enumerate() {
                let entry = line.enter(i, i as u64 + 1, seat.weight, seat.capacity, true, ());
                let inside = matches!(entry, line::Entry::Admitted);
                prop_assert_eq!(read.standing(&seat.child) == Standing::Inside, inside);
                prop_assert_eq!(read.is_inside(&seat.child), Some(inside));
                if !inside && !permits {
                    prop_assert!(read.blocker(&seat.child).is_some(), "a lock that waits has somebody to watch");
                }
            }
        }
    }

    #[test]
    fn nothing_that_others_write_can_harm(child in "\\PC{0,60}", tail in "[_-]?[0-9]{10}") {
        for child in [child.clone(), child + &tail] {
            let line = seats(&[&child]);
            prop_assert!(line.inside() <= 1);
            prop_assert_eq!(digits(&child).is_some(), line.below.is_empty());
        }
    }
}
