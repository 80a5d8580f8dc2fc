//! The fence in this process: marks in memory, for a resource that one process owns.

use super::{Marks, checked};
use crate::error::Result;
use crate::store::Mode;
use crate::sync::{Mutex, lock};
use crate::token::Token;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Marks in memory, two for each name and store label. A clone is the same gate.
///
/// [`enter`](Gate::enter) judges an access and stays with it until it is over: an access that was accepted cannot be overtaken
/// half-way. [`accept`](Gate::accept) only judges.
///
/// It forgets nothing, since a name that it forgot would let everybody in: about 200 bytes for each name. What must outlive
/// the process is handed on by [`marks`](Gate::marks) and [`with_marks`](Gate::with_marks).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// # let locks = fencelock::Locks::connect("memory:gate-example").await?;
/// use fencelock::{ErrorKind, fence::Gate};
///
/// let gate = Gate::new(); // beside what it protects
/// let first = locks.mutex("stock/42").lock().await?;
/// let late = first.token();
/// first.release().await?; // or lost, without anybody having told the writer
///
/// let second = locks.mutex("stock/42").lock().await?;
/// let pass = gate.enter(&second.token()).await?;
/// // ... write ...
/// drop(pass);
/// assert_eq!(gate.enter(&late).await.unwrap_err().kind(), ErrorKind::Overtaken);
/// # Ok(())
/// # }
/// ```
///
/// A semaphore's permit is no fence:
///
/// ```compile_fail
/// async fn write(gate: fencelock::fence::Gate, permit: fencelock::Permit) {
///     gate.enter(&permit.token()).await.unwrap();
/// }
/// ```
#[derive(Clone, Default)]
pub struct Gate(Arc<Mutex<Slots>>);

/// By name and label.
type Slots = HashMap<(String, String), Slot>;

#[derive(Clone, Default)]
struct Slot {
    marks: Arc<Mutex<Marks>>,
    /// Held by the accesses that are under way.
    turn: Arc<RwLock<()>>,
}

/// An access that is under way. Drop it when the access is over.
#[must_use = "the access is over when it is dropped"]
#[derive(Debug)]
pub struct Pass(#[expect(dead_code, reason = "held for its drop")] Turn);

#[derive(Debug)]
enum Turn {
    Exclusive(#[expect(dead_code, reason = "held for its drop")] OwnedRwLockWriteGuard<()>),
    Shared(#[expect(dead_code, reason = "held for its drop")] OwnedRwLockReadGuard<()>),
}

impl Gate {
    /// A gate that has seen nothing yet.
    #[must_use]
    pub fn new() -> Gate {
        Gate::default()
    }

    /// A gate that goes on where another one stood: see [`marks`](Gate::marks).
    #[must_use]
    pub fn with_marks(marks: impl IntoIterator<Item = (String, String, Marks)>) -> Gate {
        let slot = |marks| Slot { marks: Arc::new(Mutex::new(marks)), turn: Arc::default() };
        let slots = marks.into_iter().map(|(name, label, marks)| ((name, label), slot(marks)));
        Gate(Arc::new(Mutex::new(slots.collect())))
    }

    /// Every name and label that has been here, with its marks.
    #[must_use]
    pub fn marks(&self) -> Vec<(String, String, Marks)> {
        let slots = lock(&self.0);
        slots.iter().map(|((name, label), slot)| (name.clone(), label.clone(), *lock(&slot.marks))).collect()
    }

    /// Accepts an access and remembers it, or refuses it because a later grant has been here. Between the answer and the
    /// access somebody else may be accepted: for whoever has a lock around both, or writes at once.
    ///
    /// # Errors
    /// `Overtaken`; `InvalidInput` for a token that no store can have given.
    pub fn accept(&self, token: &Token) -> Result<()> {
        checked(token)?;
        let slot = self.slot(token);
        let answer = lock(&slot.marks).accept(token);
        Ok(answer?)
    }

    /// The same for an access that takes a while: waits until the accesses that it excludes are over, and keeps later ones
    /// waiting until the pass is dropped. Shared accesses go beside each other.
    ///
    /// # Errors
    /// Those of [`accept`](Gate::accept).
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place; the marks may have moved.
    pub async fn enter(&self, token: &Token) -> Result<Pass> {
        checked(token)?;
        let slot = self.slot(token);
        let turn = match token.mode() {
            Mode::Exclusive => Turn::Exclusive(slot.turn.write_owned().await),
            _ => Turn::Shared(slot.turn.read_owned().await),
        };
        // Judged when it begins, not when it came.
        lock(&slot.marks).accept(token)?;
        Ok(Pass(turn))
    }

    fn slot(&self, token: &Token) -> Slot {
        let key = (token.name().to_string(), token.label().to_string());
        lock(&self.0).entry(key).or_default().clone()
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gate({} names)", lock(&self.0).len())
    }
}
