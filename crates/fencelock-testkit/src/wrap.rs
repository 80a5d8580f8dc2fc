//! Stores around a store: one whose calls go wrong on purpose, one that claims what is not true.

pub(crate) mod faulty;
pub(crate) mod lying;
