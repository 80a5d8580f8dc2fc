//! What a ticket says of itself where a store keeps one value per ticket (etcd, ZooKeeper, Consul), and what a client reads
//! out of a line of such tickets by [the rule](crate::line). Pure: no I/O.
//!
//! The value is JSON. `fencelock` is the version of the layout; a value without it belongs to another client of the store, and
//! such a ticket is exclusive. A version that this code does not know is refused loudly: guessing its weight could let two
//! in.

use super::{Enter, Kind, Line, Listed, Mode, Note, Seen, TicketId};
use crate::error::{Error, ErrorKind, Result};
use crate::line::{self, WHOLE};
use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::time::Duration;

/// The layout that this code writes and reads.
const LAYOUT: u32 = 1;
/// How much of a text for people is kept, in bytes.
const LONGEST_TEXT: usize = 1024;
/// How long a leader's value may be, in bytes.
const LONGEST_VALUE: usize = 64 * 1024;
/// How many names of other locks are kept.
const MOST_HELD: usize = 64;

/// A ticket's value: see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it is for.
    pub kind: Kind,
    /// How much of the capacity it takes.
    pub weight: u32,
    /// The capacity it was entered with.
    pub capacity: u32,
    /// Whose it is.
    pub owner: String,
    /// What it says of itself.
    pub note: Note,
    /// The lock's name, where the key is a hash.
    pub name: Option<String>,
    /// The keys of the locks that its owner held when it entered.
    pub held: Vec<String>,
}

/// A [`Record`] as it is written.
#[derive(Serialize, Deserialize)]
struct Wire<'a> {
    fencelock: u32,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    weight: u32,
    capacity: u32,
    #[serde(borrow)]
    owner: Cow<'a, str>,
    #[serde(borrow, default)]
    host: Cow<'a, str>,
    #[serde(default)]
    pid: u32,
    #[serde(borrow, default)]
    identity: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    reason: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    held: Vec<String>,
}

/// What every version of the layout has.
#[derive(Deserialize)]
struct Version {
    fencelock: u32,
}

const KINDS: [(Kind, &str); 5] = [
    (Kind::Mutex, "mutex"),
    (Kind::Read, "read"),
    (Kind::Write, "write"),
    (Kind::Permits, "permits"),
    (Kind::Leader, "leader"),
];

impl Record {
    /// Of a ticket that is to be entered.
    ///
    /// # Errors
    /// `InvalidInput` for a leader's value of more than 64 KiB. Other texts are cut.
    pub fn of(ticket: &Enter) -> Result<Record> {
        let mut record = Record {
            kind: ticket.kind,
            weight: ticket.weight,
            capacity: ticket.capacity,
            owner: ticket.owner.to_string(),
            note: Note::default(),
            name: ticket.place.name.long().map(String::from),
            held: ticket.held.iter().take(MOST_HELD).map(|name| name.key().to_string()).collect(),
        };
        record.say(&ticket.note)?;
        Ok(record)
    }

    /// Of a ticket of another client, of which nothing is known: exclusive. `who` is what to call it.
    #[must_use]
    pub fn foreign(who: &str, value: &[u8]) -> Record {
        let value = (!value.is_empty()).then(|| cut(&String::from_utf8_lossy(value), LONGEST_TEXT).into());
        Record {
            kind: Kind::Mutex,
            weight: WHOLE,
            capacity: WHOLE,
            owner: String::new(),
            note: Note { host: who.into(), pid: 0, identity: who.into(), reason: None, value },
            name: None,
            held: Vec::new(),
        }
    }

    /// Says something new.
    ///
    /// # Errors
    /// As [`of`](Record::of).
    pub fn say(&mut self, note: &Note) -> Result<()> {
        if let Some(value) = note.value.as_ref().filter(|value| value.len() > LONGEST_VALUE) {
            let message = format!("a leader's value has at most {LONGEST_VALUE} bytes, this one has {}", value.len());
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        self.note = Note {
            host: cut(&note.host, LONGEST_TEXT).into(),
            pid: note.pid,
            identity: cut(&note.identity, LONGEST_TEXT).into(),
            reason: note.reason.as_deref().map(|reason| cut(reason, LONGEST_TEXT).into()),
            value: note.value.clone(),
        };
        Ok(())
    }

    /// Lowers the weight: a writer becomes a reader. A larger weight than it has is ignored.
    pub fn lower(&mut self, weight: u32) {
        if weight < self.weight {
            self.weight = weight.max(1);
            if self.capacity == WHOLE {
                self.kind = Kind::Read;
            }
        }
    }

    /// Takes all of the capacity: a reader becomes a writer.
    pub fn raise(&mut self) {
        self.weight = self.capacity;
        if self.kind == Kind::Read {
            self.kind = Kind::Write;
        }
    }

    /// As it is written.
    ///
    /// # Panics
    /// Never: texts and numbers always can be.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let kind = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or("mutex", |(_, word)| word);
        let wire = Wire {
            fencelock: LAYOUT,
            kind: kind.into(),
            weight: self.weight,
            capacity: self.capacity,
            owner: self.owner.as_str().into(),
            host: (&*self.note.host).into(),
            pid: self.note.pid,
            identity: (&*self.note.identity).into(),
            reason: self.note.reason.as_deref().map(Cow::from),
            value: self.note.value.as_deref().map(Cow::from),
            name: self.name.as_deref().map(Cow::from),
            held: self.held.clone(),
        };
        serde_json::to_vec(&wire).expect("texts and numbers can be written")
    }

    /// Reads a value. What is none of ours is [`foreign`](Record::foreign), `who` then says what to call it.
    ///
    /// # Errors
    /// `Broken` for a layout that this code does not know, and for a value that says it is ours and cannot be read.
    pub fn parse(value: &[u8], who: &str) -> Result<Record> {
        let broken = |message: String| Error::new(ErrorKind::Broken, message);
        let version = |version: u32| {
            broken(format!("a ticket has layout {version}, and this version of fencelock knows layout {LAYOUT}"))
        };
        // An array would be read as well, field by field.
        if value.first() != Some(&b'{') {
            return Ok(Record::foreign(who, value));
        }
        let wire: Wire<'_> = match serde_json::from_slice(value) {
            Ok(wire) => wire,
            Err(_) => match serde_json::from_slice(value) {
                Ok(Version { fencelock: LAYOUT }) => return Err(broken("a ticket cannot be read".into())),
                Ok(Version { fencelock }) => return Err(version(fencelock)),
                Err(_) => return Ok(Record::foreign(who, value)),
            },
        };
        if wire.fencelock != LAYOUT {
            return Err(version(wire.fencelock));
        }
        let kind = KINDS.iter().find(|(_, word)| *word == wire.kind).map(|(kind, _)| *kind);
        let Some(kind) = kind.filter(|_| wire.weight > 0 && wire.weight <= wire.capacity && wire.capacity <= WHOLE)
        else {
            return Err(broken("a ticket says what no ticket can be".into()));
        };
        Ok(Record {
            kind,
            weight: wire.weight,
            capacity: wire.capacity,
            owner: wire.owner.into(),
            note: Note {
                host: wire.host.into(),
                pid: wire.pid,
                identity: wire.identity.into(),
                reason: wire.reason.map(Into::into),
                value: wire.value.map(Into::into),
            },
            name: wire.name.map(Into::into),
            held: wire.held,
        })
    }

    fn mode(&self) -> Mode {
        self.kind.mode()
    }
}

/// The beginning of a text, at most so many bytes of it.
fn cut(text: &str, longest: usize) -> &str {
    let end = (0..=longest.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    &text[..end]
}

/// A ticket as a client has read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Its place in the order of the line.
    pub order: u64,
    /// Its number, where it is known.
    pub token: Option<u64>,
    /// Its id, where it is one of ours.
    pub id: Option<TicketId>,
    /// What it says.
    pub record: Record,
    /// How long its lease still runs, where the store tells.
    pub expires_in: Option<Duration>,
}

impl Ticket {
    /// As others see it.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let note = &self.record.note;
        Seen {
            token: self.token,
            mode: self.record.mode(),
            weight: self.record.weight,
            host: note.host.to_string(),
            pid: note.pid,
            identity: note.identity.to_string(),
            owner: self.record.owner.clone(),
            reason: note.reason.as_deref().map(String::from),
            value: note.value.as_deref().map(String::from),
            // Nobody's wall clock is shared, so the moments are not kept.
            entered: None,
            admitted: None,
            expires_in: self.expires_in,
        }
    }
}

/// How a ticket stands in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Inside.
    Inside,
    /// In the line, behind others.
    Waiting,
    /// Not in the line.
    Gone,
    /// In the line, where it does not belong: the head has another capacity.
    Mismatch {
        /// Which.
        there: u32,
    },
}

/// A line as a client has read it, in order. It may be old: that only hides departures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture(Vec<Ticket>);

impl Picture {
    /// Of these tickets, in whatever order they were read.
    #[must_use]
    pub fn new(mut tickets: Vec<Ticket>) -> Picture {
        tickets.sort_by_key(|ticket| ticket.order);
        Picture(tickets)
    }

    /// The tickets, in order.
    #[must_use]
    pub fn tickets(&self) -> &[Ticket] {
        &self.0
    }

    /// A ticket by its id.
    #[must_use]
    pub fn get(&self, id: TicketId) -> Option<&Ticket> {
        self.0.iter().find(|ticket| ticket.id == Some(id))
    }

    /// The first of the line, as others see it.
    #[must_use]
    pub fn head(&self) -> Option<Seen> {
        self.0.first().map(Ticket::seen)
    }

    /// The first ticket that is not one of these, as others see it.
    #[must_use]
    pub fn other(&self, ids: &[TicketId]) -> Option<Seen> {
        self.0.iter().find(|ticket| !ticket.id.is_some_and(|id| ids.contains(&id))).map(Ticket::seen)
    }

    /// How many are inside: the longest beginning of the line that fits.
    #[must_use]
    pub fn inside(&self) -> usize {
        let mut ahead = 0;
        let fits = |ticket: &&Ticket| {
            let fits = line::fits(ahead, ticket.record.weight, ticket.record.capacity);
            ahead += u64::from(ticket.record.weight);
            fits
        };
        self.0.iter().take_while(fits).count()
    }

    /// How a ticket stands.
    ///
    /// A mismatch is told as long as it lasts: after a lost reply nobody knows whether it was judged at its entry. A ticket that
    /// was let in line rightly has none, since all that stand in a line have the capacity of its head.
    #[must_use]
    pub fn standing(&self, id: TicketId) -> Standing {
        let Some(at) = self.0.iter().position(|ticket| ticket.id == Some(id)) else { return Standing::Gone };
        match self.0[0].record.capacity {
            there if there != self.0[at].record.capacity => Standing::Mismatch { there },
            _ if at < self.inside() => Standing::Inside,
            _ => Standing::Waiting,
        }
    }

    /// How a ticket would stand that came now, behind all of these.
    #[must_use]
    pub fn newcomer(&self, weight: u32, capacity: u32) -> Standing {
        self.behind(weight, capacity, None)
    }

    /// How a ticket would stand behind all of these but itself: for a line of which only some tickets were read.
    #[must_use]
    pub fn behind(&self, weight: u32, capacity: u32, itself: Option<TicketId>) -> Standing {
        let others = || self.0.iter().filter(|ticket| itself.is_none() || ticket.id != itself);
        match others().next().map(|head| head.record.capacity) {
            Some(there) if there != capacity => Standing::Mismatch { there },
            _ if line::admits(others().map(|ticket| ticket.record.weight), weight, capacity) => Standing::Inside,
            _ => Standing::Waiting,
        }
    }

    /// For [`inspect`](super::Store::inspect).
    #[must_use]
    pub fn line(&self) -> Line {
        let (inside, waiting) = self.0.split_at(self.inside());
        Line {
            capacity: self.0.first().map_or(0, |head| head.record.capacity),
            inside: inside.iter().map(Ticket::seen).collect(),
            waiting: waiting.iter().map(Ticket::seen).collect(),
        }
    }

    /// For [`list`](super::Store::list); nothing where nobody is in the line.
    #[must_use]
    pub fn listed(&self, key: &str) -> Option<Listed> {
        self.0.first()?;
        let long = self.0.iter().find_map(|ticket| ticket.record.name.as_deref());
        let inside = self.inside();
        Some(Listed { name: Name::from_key(key, long), inside, waiting: self.0.len() - inside, held: None })
    }
}

#[cfg(test)]
mod tests;
