//! What others are told of this client's tickets: the rows of the table, and when they are written.
//!
//! To write a row and take it out again costs more than the lock itself, and most locks are held for less time than anybody needs
//! to look. So a ticket gets its row when it has stood for a moment; until then the client's flag says that there is more to tell
//! than the table shows. Whoever looks while somebody else's flag is up looks again, for a while. So nobody can tell the difference,
//! but by the time it takes: everything that was answered before a look is in it, unless a client has been busy, or has not come to
//! it, all that while. A row that says that somebody is inside is always true: it is taken out before the lock is given back.

use super::actor::{Actor, Ticket};
use super::driver::{Driver, Look as Found, Picture, Shown};
use super::entering::{Asked, collision, not_yet};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::{Entered, Line, Listed, Place, Seen};
use std::time::Duration;
use tokio::sync::oneshot;

/// Who is inside for so long gets a row,
const INSIDE: Duration = Duration::from_millis(5);
/// and who waits for so long.
const WAITING: Duration = Duration::from_millis(20);
/// A flag that has been up for so long is taken down as soon as the table shows everything, and need not be calm.
const UP: Duration = Duration::from_millis(50);
/// Whoever looks does so again after this (and after twice that, and so on, if it is only to say who is in the way),
pub(super) const AGAIN: Duration = Duration::from_millis(2);
/// for so long at most.
const PATIENCE: Duration = Duration::from_millis(400);

/// What the table shows of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Row {
    Missing,
    /// It was right once.
    Old {
        inside: bool,
    },
    True {
        inside: bool,
    },
}

impl Row {
    pub(super) fn is_there(self) -> bool {
        self != Row::Missing
    }

    pub(super) fn says_inside(self) -> bool {
        matches!(self, Row::Old { inside: true } | Row::True { inside: true })
    }

    fn is_true(self) -> bool {
        matches!(self, Row::True { .. })
    }
}

/// What somebody wants to know.
pub(super) enum Look {
    Line(Name, oneshot::Sender<Result<Line>>),
    Names {
        prefix: String,
        after: Option<String>,
        limit: usize,
        answer: oneshot::Sender<Result<Vec<Listed>>>,
    },
    /// Who has what was asked for and not got.
    Holder(Box<Asked>),
}

/// A look that waits for others to catch up.
pub(super) struct Looking {
    what: Look,
    since: Moment,
    pub(super) again: Moment,
}

impl Ticket {
    /// What the table shows of it is no longer right.
    pub(super) fn changes(&mut self, now: Moment) {
        self.changed = now;
        if let Row::True { inside } = self.row {
            self.row = Row::Old { inside };
        }
    }

    /// Whether it is to be shown now.
    fn is_due(&self, now: Moment, all: bool) -> bool {
        let after = if self.number.is_some() { INSIDE } else { WAITING };
        !self.row.is_true() && (all || now.since(self.changed) >= after)
    }
}

impl<D: Driver> Actor<D> {
    /// Something has changed that the table does not show. The call that changed it has put the flag up.
    pub(super) fn falls_behind(&mut self) {
        self.calm = self.clock.now();
        if self.show_at == Moment::FAR {
            self.behind = self.calm;
            self.show_at = self.calm.after(INSIDE);
        }
    }

    /// Writes the rows of those that have stood for a while, or of all; and takes the flag down if nothing is left to tell. One round
    /// trip, or none.
    pub(super) async fn show(&mut self, all: bool) -> Result<()> {
        let now = self.clock.now();
        let (mut shown, mut left) = (Vec::new(), false);
        for ticket in self.lines.values().flatten() {
            if ticket.is_due(now, all) {
                let (entered, admitted) = (now.since(ticket.entered), ticket.admitted.map(|at| now.since(at)));
                shown.push(Shown { enter: &ticket.enter, number: ticket.number, entered, admitted });
            } else {
                left |= !ticket.row.is_true();
            }
        }
        let calm = all || !shown.is_empty() || now.since(self.calm) >= INSIDE || now.since(self.behind) >= UP;
        let down = !left && calm && self.driver.is_behind();
        self.show_at = if left || (self.driver.is_behind() && !down) { now.after(INSIDE) } else { Moment::FAR };
        if shown.is_empty() && self.gone.is_empty() && !down {
            return Ok(());
        }
        if let Err(error) = self.driver.show(&self.gone, &shown, down).await {
            return Err(self.failed(error));
        }
        self.gone.clear();
        for ticket in self.lines.values_mut().flatten().filter(|ticket| ticket.is_due(now, all)) {
            ticket.row = Row::True { inside: ticket.number.is_some() };
        }
        Ok(())
    }

    /// Whoever was asking who is in the way has come in.
    pub(super) fn got(&mut self, place: &Place, token: u64) {
        let asks = |looking: &Looking| matches!(&looking.what, Look::Holder(one) if one.enter.place == *place);
        if let Some(at) = self.looking.iter().position(asks)
            && let Look::Holder(one) = self.looking.swap_remove(at).what
        {
            drop(one.answer.send(Ok(Entered::Admitted { token, lease: one.enter.lease })));
        }
    }

    /// Those whose turn it is to look again.
    pub(super) async fn look_again(&mut self) {
        let now = self.clock.now();
        let due: Vec<Looking> = self.looking.extract_if(.., |looking| looking.again <= now).collect();
        for Looking { what, since, .. } in due {
            self.see(what, since).await;
        }
    }

    /// Looks, and answers; or looks again a little later, if somebody else has something to tell. One round trip each time.
    pub(super) async fn see(&mut self, what: Look, since: Moment) {
        let patient = self.clock.now().since(since) < PATIENCE;
        let later = match what {
            Look::Line(name, answer) => match self.picture(&name).await {
                Ok(Found { behind: true, .. }) if patient => Some(Look::Line(name, answer)),
                found => {
                    drop(answer.send(found.map(|found| line(found.found))));
                    None
                }
            },
            Look::Names { prefix, after, limit, answer } => match self.names(&prefix, after.as_deref(), limit).await {
                Ok(Found { behind: true, .. }) if patient => Some(Look::Names { prefix, after, limit, answer }),
                found => {
                    drop(answer.send(found.map(|found| found.found)));
                    None
                }
            },
            Look::Holder(one) => self.see_holder(one, patient).await,
        };
        if let Some(mut what) = later {
            let mut pause = AGAIN;
            if let Look::Holder(one) = &mut what {
                pause = one.pause;
                one.pause *= 2;
            }
            self.looking.push(Looking { what, since, again: self.clock.now().after(pause) });
        }
    }

    /// Says who is in the way; the same again, if that is not known yet.
    async fn see_holder(&mut self, one: Box<Asked>, patient: bool) -> Option<Look> {
        let place = &one.enter.place;
        if one.enter.queue && self.ticket(place).is_none() {
            drop(one.answer.send(Err(Error::unknown("it was taken back"))));
            return None;
        }
        let found = match self.connected().await {
            Ok(()) => self.driver.inspect(&place.name).await.map_err(|error| self.failed(error)),
            Err(error) => Err(error),
        };
        let picture = match found {
            Ok(Found { found, behind }) => {
                let unknown = found.other.is_none() && !found.all.iter().any(|seen| seen.admitted.is_some());
                if unknown && behind && patient {
                    return Some(Look::Holder(one));
                }
                found
            }
            Err(error) => {
                drop(one.answer.send(Err(error)));
                return None;
            }
        };
        let refused = match picture.other {
            Some(other) => Some(collision(&place.name, &other)),
            None if picture.capacity != 0 && picture.capacity != one.enter.capacity => {
                Some(Error::mismatch(&place.name.shown(), one.enter.capacity, picture.capacity))
            }
            None => None,
        };
        let answer = match refused {
            // It does not stay, then.
            Some(refused) => self.leave(std::slice::from_ref(place)).await.and(Err(refused)),
            None => Ok(not_yet(&one.enter, picture.all.into_iter().find(|seen| seen.admitted.is_some()))),
        };
        drop(one.answer.send(answer));
        None
    }

    /// A line as others see it, ours included.
    async fn picture(&mut self, name: &Name) -> Result<Found<Picture>> {
        self.caught_up().await?;
        self.driver.inspect(name).await.map_err(|error| self.failed(error))
    }

    async fn names(&mut self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Found<Vec<Listed>>> {
        self.caught_up().await?;
        self.driver.list(prefix, after, limit).await.map_err(|error| self.failed(error))
    }

    /// Connected, and with everything of ours in the table.
    async fn caught_up(&mut self) -> Result<()> {
        self.connected().await?;
        self.show(true).await
    }
}

fn line(picture: Picture) -> Line {
    let (mut inside, waiting): (Vec<Seen>, Vec<Seen>) =
        picture.all.into_iter().partition(|seen| seen.admitted.is_some());
    inside.sort_by_key(|seen| seen.token);
    Line { capacity: picture.capacity, inside, waiting }
}
