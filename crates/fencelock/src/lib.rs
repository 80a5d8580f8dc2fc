//! fencelock
pub mod clock;
pub mod error;
pub mod fence;
pub mod line;
pub mod name;
pub mod store;
mod token;
pub use clock::*;
pub use error::{Effect, Error, ErrorKind, Result};
pub use token::Token;
