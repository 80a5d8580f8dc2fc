//! Nodes: how a ticket is spelled as the name of a node, how the children of a line's node are read back, and who stands
//! where in such a line. Pure: no I/O.
//!
//! A ticket is `_c_<id>-<marker><ten digits>` below the node of its line: the spelling of Apache Curator's recipes, which
//! count `lock-` (its mutex) and `__READ__`/`__WRIT__` (its read-write lock). Permits are ours: `permit-<k>of<N>-`. So a
//! list of children is all it takes to decide: order, weight and capacity are in the names.

use crate::error::{Error, ErrorKind, Result};
use crate::line::{self, WHOLE};
use crate::name::Name;
use crate::store::note::{Record, Standing, Ticket};
use crate::store::{Kind, TicketId};
use serde::Deserialize;

/// What Curator puts in front of a node's name so that its maker finds it again.
const PROTECTED: &str = "_c_";
/// The server's own node, which is nobody's lock.
const RESERVED: &str = "zookeeper";
/// No path is longer than this. The server drops the connection, with everybody's locks, over a request that is too long.
pub(super) const LONGEST_PATH: usize = 1024;

/// The node of a line, within the chroot.
pub(super) fn line_path(name: &Name) -> Result<String> {
    let key = name.key();
    let spelled = match key.strip_prefix(RESERVED) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("/%{key}"),
        _ => format!("/{key}"),
    };
    if spelled.len() > LONGEST_PATH {
        let message = format!("a path of {} bytes is too long for this store", spelled.len());
        return Err(Error::new(ErrorKind::InvalidName, message));
    }
    Ok(spelled)
}

/// The key of the name whose line is at this path; `None` for the server's own nodes.
pub(super) fn line_key(path: &str) -> Option<&str> {
    let path = path.strip_prefix('/')?;
    let first = path.split('/').next()?;
    match first {
        RESERVED => None,
        _ if first.strip_prefix('%') == Some(RESERVED) => Some(&path[1..]),
        _ => Some(path),
    }
}

/// How the node of such a ticket begins; the server adds the digits.
pub(super) fn prefix(line: &str, id: TicketId, kind: Kind, weight: u32, capacity: u32) -> String {
    let id = uuid(id);
    if capacity != WHOLE {
        return format!("{line}/{PROTECTED}{id}-permit-{weight}of{capacity}-");
    }
    let marker = match kind {
        _ if weight < capacity => "__READ__",
        Kind::Write => "__WRIT__",
        _ => "lock-",
    };
    format!("{line}/{PROTECTED}{id}-{marker}")
}

fn uuid(id: TicketId) -> String {
    let hex = id.to_string();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn id_in(uuid: &str) -> Option<TicketId> {
    let dashes = uuid.bytes().enumerate().all(|(i, b)| (b == b'-') == matches!(i, 8 | 13 | 18 | 23));
    let digits: Vec<u8> = uuid.bytes().filter(|b| *b != b'-').collect();
    if uuid.len() != 36 || !dashes {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(pair, 16).ok().filter(|_| !pair.starts_with('+'))?;
    }
    Some(TicketId::from_bytes(bytes))
}

/// A ticket, as the name of its node tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) id: TicketId,
    pub(super) kind: Kind,
    pub(super) weight: u32,
    pub(super) capacity: u32,
    pub(super) order: u64,
    /// The node's name within the line.
    pub(super) child: String,
}

/// A child of a line's node.
#[derive(Debug, PartialEq, Eq)]
enum Child {
    Ticket(Seat),
    /// A ticket of some other recipe, whose maker does not see ours.
    Foreign(String),
    /// A name below this one.
    Below(String),
}

/// Where a sequential node has its digits.
fn digits(child: &str) -> Option<(&str, u64)> {
    let at = child.len().checked_sub(10)?;
    let (front, digits) = (child.get(..at)?, child.get(at..)?);
    let sequential = front.ends_with(['-', '_']) && digits.bytes().all(|b| b.is_ascii_digit());
    Some((front, digits.parse().ok().filter(|_| sequential)?))
}

fn read(child: String) -> Child {
    let Some((front, order)) = digits(&child) else { return Child::Below(child) };
    let found = front.strip_prefix(PROTECTED).and_then(|rest| {
        let (id, rest) = (id_in(rest.get(..36)?)?, rest.get(36..)?.strip_prefix('-')?);
        let (kind, weight, capacity) = match rest {
            "lock-" => (Kind::Mutex, WHOLE, WHOLE),
            "__WRIT__" => (Kind::Write, WHOLE, WHOLE),
            "__READ__" => (Kind::Read, 1, WHOLE),
            _ => {
                let (k, n) = rest.strip_prefix("permit-")?.strip_suffix('-')?.split_once("of")?;
                let plain = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
                let (k, n) = (k.parse().ok().filter(|_| plain(k))?, n.parse().ok().filter(|_| plain(n))?);
                (Kind::Permits, k, n)
            }
        };
        let fits = weight > 0 && weight <= capacity && (kind != Kind::Permits || capacity < WHOLE);
        fits.then_some((id, kind, weight, capacity))
    });
    match found {
        Some((id, kind, weight, capacity)) => Child::Ticket(Seat { id, kind, weight, capacity, order, child }),
        None => Child::Foreign(child),
    }
}

/// A line, read from the names of its children, in order. It may be old: that only hides departures.
#[derive(Clone, Debug, Default)]
pub(super) struct Seats {
    seats: Vec<Seat>,
    /// The weight ahead of each: a crowd is asked about one by one.
    ahead: Vec<u64>,
    /// Tickets of other recipes.
    pub(super) foreign: Vec<String>,
    /// Names below this one.
    pub(super) below: Vec<String>,
}

impl Seats {
    pub(super) fn read(children: Vec<String>) -> Seats {
        let mut line = Seats::default();
        for child in children {
            match read(child) {
                Child::Ticket(seat) => line.seats.push(seat),
                Child::Foreign(child) => line.foreign.push(child),
                Child::Below(child) => line.below.push(child),
            }
        }
        // Curator's downgraded writer has two nodes with the same number.
        line.seats.sort_by(|a, b| (a.order, &a.child).cmp(&(b.order, &b.child)));
        let sum = |ahead: &mut u64, seat: &Seat| Some(std::mem::replace(ahead, *ahead + u64::from(seat.weight)));
        line.ahead = line.seats.iter().scan(0, sum).collect();
        line
    }

    pub(super) fn all(&self) -> &[Seat] {
        &self.seats
    }

    pub(super) fn head(&self) -> Option<&Seat> {
        self.seats.first()
    }

    /// The nodes of this ticket: one, but for a moment after a lost reply.
    pub(super) fn of(&self, id: TicketId) -> impl Iterator<Item = &Seat> {
        self.seats.iter().filter(move |seat| seat.id == id)
    }

    fn position(&self, child: &str) -> Option<usize> {
        let (_, order) = digits(child)?;
        let from = self.seats.partition_point(|seat| seat.order < order);
        let same = self.seats[from..].iter().take_while(|seat| seat.order == order);
        same.enumerate().find(|(_, seat)| seat.child == child).map(|(i, _)| from + i)
    }

    /// How the ticket with this node stands, by the rule.
    pub(super) fn standing(&self, child: &str) -> Standing {
        let Some(at) = self.position(child) else { return Standing::Gone };
        let mine = &self.seats[at];
        match self.seats[0].capacity {
            there if there != mine.capacity => Standing::Mismatch { there },
            _ if self.admits(at) => Standing::Inside,
            _ => Standing::Waiting,
        }
    }

    /// The same for a ticket that was let into the line: a stray one ahead can only delay it.
    pub(super) fn is_inside(&self, child: &str) -> Option<bool> {
        self.position(child).map(|at| self.admits(at))
    }

    fn admits(&self, at: usize) -> bool {
        line::fits(self.ahead[at], self.seats[at].weight, self.seats[at].capacity)
    }

    /// The nearest ticket ahead of this one that it cannot share with; `None` where no single one is in its way.
    pub(super) fn blocker(&self, child: &str) -> Option<&Seat> {
        let at = self.position(child)?;
        let mine = &self.seats[at];
        let alone = |seat: &&Seat| !line::fits(u64::from(seat.weight), mine.weight, mine.capacity);
        self.seats[..at].iter().rev().find(alone)
    }

    /// How many are inside.
    pub(super) fn inside(&self) -> usize {
        (0..self.seats.len()).take_while(|at| self.admits(*at)).count()
    }
}

/// A ticket's data: its record, and the number it keeps although its node was replaced.
pub(super) fn data(record: &Record, token: Option<u64>) -> Vec<u8> {
    let mut bytes = record.to_bytes();
    if let Some(token) = token {
        bytes.pop();
        bytes.extend_from_slice(format!(",\"token\":{token}}}").as_bytes());
    }
    bytes
}

#[derive(Deserialize)]
struct Kept {
    token: u64,
}

/// A ticket as others see it: what its node's name, number and data say. What another client has written there is shown as
/// its value.
pub(super) fn ticket(seat: &Seat, czxid: i64, data: &[u8]) -> Result<Ticket> {
    let ours = data.first() == Some(&b'{');
    let kept = ours.then(|| serde_json::from_slice::<Kept>(data).ok()).flatten();
    let mut record = Record::parse(data, "another client")?;
    if record.kind.mode() != seat.kind.mode() {
        record.kind = seat.kind;
    }
    // A reader that weighs more than one is no other reader to anybody: it fits beside all of them.
    if seat.kind != Kind::Read || record.capacity != WHOLE || record.weight == WHOLE {
        record.weight = seat.weight;
    }
    record.capacity = seat.capacity;
    let czxid = u64::try_from(czxid).ok();
    Ok(Ticket {
        order: seat.order,
        token: kept.map(|kept| kept.token).or(czxid),
        id: Some(seat.id),
        record,
        expires_in: None,
    })
}

#[cfg(test)]
mod tests;
