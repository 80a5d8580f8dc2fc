//! One verb per file.

pub(crate) mod break_ticket;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod elect;
pub(crate) mod hold;
pub(crate) mod limit;
pub(crate) mod ls;
pub(crate) mod migrate;
pub(crate) mod run;
pub(crate) mod show;
pub(crate) mod stores;
pub(crate) mod watch;
