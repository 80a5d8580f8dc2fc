//! The ways to keep the books right, or not: their names and what they need.

use clap::ValueEnum;

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum Strategy {
    /// Read, check, write: nothing else.
    None,
    /// A lock inside each process.
    ProcessLock,
    /// A lock of ours, in the queue.
    Lock,
    /// The same, beside the queue.
    LockUnfair,
    /// A lock of ours for each product.
    LockPerProduct,
    /// A lock of ours, and its token checked in the transaction that writes.
    Fenced,
    /// The stock in 20 parts, a lock of ours for each.
    Striped,
    /// The row is locked by the database.
    ForUpdate,
    /// A version column.
    Optimistic,
    /// `WHERE stock = ?`
    Cas,
    /// Redis by hand: SETNX, DEL.
    Setnx,
    /// Redis by hand: SETNX, EXPIRE, DEL.
    SetnxExpire,
    /// Redis by hand: SET NX PX, DEL.
    SetNxPxDel,
    /// Redis by hand: SET NX PX, GET, DEL.
    SetNxPxCheckDel,
    /// Redis by hand: SET NX PX with a random value, released by a script.
    SetNxPxScript,
}

impl Strategy {
    /// As it is called on the command line and in the table.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// Among which it stands on the page.
    pub(crate) fn kind(self) -> &'static str {
        use Strategy::{Cas, ForUpdate, None, Optimistic, ProcessLock};
        match self {
            None | ProcessLock => "not enough",
            ForUpdate | Optimistic | Cas => "the database alone",
            strategy if strategy.by_hand() => "Redis by hand",
            _ => "fencelock",
        }
    }

    /// Takes locks of ours.
    pub(crate) fn locks(self) -> bool {
        use Strategy::{Fenced, Lock, LockPerProduct, LockUnfair, Striped};
        matches!(self, Lock | LockUnfair | LockPerProduct | Fenced | Striped)
    }

    /// Redis by hand.
    pub(crate) fn by_hand(self) -> bool {
        use Strategy::{SetNxPxCheckDel, SetNxPxDel, SetNxPxScript, Setnx, SetnxExpire};
        matches!(self, Setnx | SetnxExpire | SetNxPxDel | SetNxPxCheckDel | SetNxPxScript)
    }

    /// Sells more than there is on so many nodes, if it is pressed hard enough.
    pub(crate) fn can_oversell(self, nodes: usize) -> bool {
        self == Strategy::None || self == Strategy::ProcessLock && nodes > 1
    }
}
