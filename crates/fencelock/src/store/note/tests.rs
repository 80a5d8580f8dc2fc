//! What was said can be read back, what others said harms nobody, and a picture of a line gives the answers of the rule.

use super::*;
use crate::store::{OwnerId, Place};
use proptest::prelude::*;

fn enter(kind: Kind, weight: u32, capacity: u32) -> Enter {
    Enter {
        place: Place { name: Name::new("", &"long ".repeat(99)).unwrap(), id: TicketId::new() },
        kind,
        weight,
        capacity,
        lease: Duration::from_secs(1),
        queue: true,
        owner: OwnerId::new(),
        held: vec![Name::new("", "a b").unwrap()],
        note: Note {
            host: "web \"3\"".into(),
            pid: 4_000_000_000,
            identity: "{}\u{1b}\n🔒".into(),
            reason: Some("".into()),
            value: Some("v".into()),
        },
    }
}

#[test]
fn what_was_said_can_be_read_back() {
    let kinds = KINDS.map(|(kind, _)| enter(kind, if kind == Kind::Permits { 2 } else { WHOLE }, WHOLE));
    for ticket in kinds {
        let record = Record::of(&ticket).unwrap();
        let read = Record::parse(&record.to_bytes(), "?").unwrap();
        assert_eq!(read, record);
        assert_eq!((read.kind, read.weight, &read.note), (ticket.kind, ticket.weight, &ticket.note));
        assert_eq!((read.owner, read.held), (ticket.owner.to_string(), vec!["%a%20b".to_string()]));
        assert_eq!(read.name.as_deref(), ticket.place.name.long());
    }
}

#[test]
fn what_others_say_is_exclusive() {
    let others: [&[u8]; 7] = [b"", b"host-7", b"{}", b"[1]", b"\xff\x00", b"{\"weight\":1}", b"{\"fencelock\":\"x\"}"];
    for value in others {
        let record = Record::parse(value, "somebody").unwrap();
        assert_eq!((record.weight, record.capacity, record.mode()), (WHOLE, WHOLE, Mode::Exclusive), "{value:?}");
        assert_eq!((&*record.note.identity, record.note.value.is_none()), ("somebody", value.is_empty()));
    }
}

#[test]
fn what_is_ours_and_cannot_be_read_is_told() {
    let good = String::from_utf8(Record::of(&enter(Kind::Read, 1, WHOLE)).unwrap().to_bytes()).unwrap();
    for (from, to, part) in [
        ("\"fencelock\":1", "\"fencelock\":2", "layout 2"),
        ("\"weight\":1", "\"weight\":0", "no ticket can be"),
        ("\"weight\":1", "\"weight\":2000000", "no ticket can be"),
        ("\"weight\":1", "\"weight\":-1", "cannot be read"),
        ("\"capacity\":1048576", "\"capacity\":1048577", "no ticket can be"),
        ("\"kind\":\"read\"", "\"kind\":\"odd\"", "no ticket can be"),
        (good.as_str(), "{\"fencelock\":7}", "layout 7"),
    ] {
        let bad = good.replace(from, to);
        assert_ne!(bad, good, "{from}");
        let error = Record::parse(bad.as_bytes(), "?").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{to}");
        assert!(error.to_string().contains(part), "{to}: {error}");
    }
    // What a later version adds without a new layout does no harm.
    let more = good.replace("\"fencelock\":1", "\"fencelock\":1,\"more\":[{}]");
    assert_eq!(Record::parse(more.as_bytes(), "?").unwrap().weight, 1);
}

#[test]
fn a_value_is_bounded() {
    let mut ticket = enter(Kind::Leader, WHOLE, WHOLE);
    ticket.note.identity = "ä".repeat(100_000).into();
    ticket.note.reason = Some("\u{1b}".repeat(100_000).into());
    ticket.held = (0..1000).map(|i| Name::new("", &format!("{i}")).unwrap()).collect();
    let record = Record::of(&ticket).unwrap();
    assert!(record.to_bytes().len() < 32 * 1024);
    assert_eq!(record.note.identity.len(), LONGEST_TEXT);
    ticket.note.value = Some("v".repeat(LONGEST_VALUE).into());
    let record = Record::of(&ticket).unwrap();
    assert_eq!(Record::parse(&record.to_bytes(), "?").unwrap().note.value, ticket.note.value, "a value is never cut");
    ticket.note.value = Some("v".repeat(LONGEST_VALUE + 1).into());
    assert_eq!(Record::of(&ticket).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn weights_only_go_down() {
    let mut record = Record::of(&enter(Kind::Write, WHOLE, WHOLE)).unwrap();
    record.lower(WHOLE);
    assert_eq!((record.kind, record.weight), (Kind::Write, WHOLE));
    record.lower(1);
    assert_eq!((record.kind, record.weight), (Kind::Read, 1));
    record.lower(5);
    assert_eq!(record.weight, 1);
    record.raise();
    assert_eq!((record.kind, record.weight), (Kind::Write, WHOLE));
    let mut permits = Record::of(&enter(Kind::Permits, 3, 5)).unwrap();
    permits.lower(2);
    assert_eq!((permits.kind, permits.weight), (Kind::Permits, 2));
}

fn picture<T>(line: &line::Line<TicketId, T>) -> Picture {
    let tickets = line.iter().map(|(number, ticket)| Ticket {
        order: number,
        token: Some(number),
        id: Some(ticket.id),
        record: Record { weight: ticket.weight, capacity: ticket.capacity, ..Record::foreign("x", b"") },
        expires_in: None,
    });
    // In any order.
    let mut tickets: Vec<Ticket> = tickets.collect();
    tickets.reverse();
    Picture::new(tickets)
}

proptest! {
    /// Whatever has happened to a line, a client that reads it comes to what [`line::Line`] says.
    #[test]
    fn a_picture_answers_as_the_line_does(
        acts in prop::collection::vec((0u8..4, 1u32..4, any::<bool>(), 0usize..8), 1..40),
        semaphore in any::<bool>(),
    ) {
        let capacity = if semaphore { 3 } else { WHOLE };
        let mut line: line::Line<TicketId, ()> = line::Line::default();
        let mut number = 0;
        for (act, weight, queue, which) in acts {
            let weight = if semaphore || weight < 3 { weight } else { WHOLE };
            let some = line.iter().map(|(_, ticket)| ticket.id).nth(which);
            match (act, some) {
                (0, Some(id)) => drop(line.leave(id)),
                (1, Some(id)) => drop(line.change(id, weight)),
                _ => {
                    let would = picture(&line).newcomer(weight, capacity);
                    number += 1;
                    let entry = line.enter(TicketId::new(), number, weight, capacity, queue, ());
                    prop_assert_eq!(would == Standing::Inside, entry == line::Entry::Admitted);
                    prop_assert_eq!(picture(&line).newcomer(weight, 2), if line.is_empty() && weight <= 2 {
                        Standing::Inside
                    } else if line.is_empty() {
                        Standing::Waiting
                    } else {
                        Standing::Mismatch { there: capacity }
                    });
                }
            }
            let picture = picture(&line);
            for (_, ticket) in line.iter() {
                let standing = if ticket.admitted { Standing::Inside } else { Standing::Waiting };
                prop_assert_eq!(picture.standing(ticket.id), standing);
            }
            prop_assert_eq!(picture.standing(TicketId::new()), Standing::Gone);
            let told = picture.line();
            prop_assert_eq!(told.capacity, line.capacity().unwrap_or(0));
            prop_assert_eq!(told.inside.len() + told.waiting.len(), line.len());
            let listed = picture.listed("a");
            prop_assert_eq!(listed.map(|one| (one.inside, one.waiting)),
                (!line.is_empty()).then_some((told.inside.len(), told.waiting.len())));
        }
    }
}

#[test]
fn a_stray_ticket_can_only_delay() {
    let ticket = |order, weight, capacity| Ticket {
        order,
        token: Some(order),
        id: Some(TicketId::new()),
        record: Record { weight, capacity, ..Record::foreign("x", b"") },
        expires_in: None,
    };
    let picture = Picture::new(vec![ticket(1, 2, 3), ticket(2, 1, WHOLE), ticket(3, 1, 3), ticket(4, 1, 3)]);
    let ids: Vec<TicketId> = picture.tickets().iter().filter_map(|ticket| ticket.id).collect();
    let standings: Vec<Standing> = ids.iter().map(|id| picture.standing(*id)).collect();
    assert_eq!(standings, [Standing::Inside, Standing::Mismatch { there: 3 }, Standing::Waiting, Standing::Waiting]);
    assert_eq!(picture.other(&ids[..2]).and_then(|seen| seen.token), Some(3));
    assert_eq!(picture.other(&ids), None);
    assert_eq!(picture.head().and_then(|seen| seen.token), Some(1));
    assert_eq!(picture.get(ids[1]).map(|ticket| ticket.order), Some(2));
}
