//! The fence on a ZooKeeper ensemble of the caller's own: a guard in the caller's transaction.
//!
//! Each name and label has a node below a folder that the caller names and has made; its data are the two marks. The guard reads
//! it, judges, and puts the new marks into the transaction under the condition that nobody has been there in between.
//!
//! ```no_run
//! # async fn f(client: &fencelock::zookeeper_client::Client, guard: &fencelock::MutexGuard) -> Result<(), Box<dyn std::error::Error>> {
//! use fencelock::fence::zookeeper::{self, Retry};
//!
//! let left = loop {
//!     let mut write = client.new_multi_writer();
//!     zookeeper::guard(client, &mut write, "/shop/marks", &guard.token()).await?; // an error if a later holder has been here
//!     write.add_set_data("/shop/stock/42", b"6", None)?;
//!     match zookeeper::commit(write).await? {
//!         Retry::Done(results) => break results,
//!         Retry::Again => {} // somebody was there in between: look again
//!     }
//! };
//! # let _ = left;
//! # Ok(()) }
//! ```

use super::{Marks, checked};
use crate::error::{Error, ErrorKind, Result};
use crate::token::Token;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use zookeeper_client::{Acls, Client, CreateMode, MultiWriteError, MultiWriteResult, MultiWriter};

/// What became of a guarded transaction.
#[derive(Debug)]
pub enum Retry {
    /// It is done, with these results; the first one is the guard's.
    Done(Vec<MultiWriteResult>),
    /// Nothing was written, since somebody was at the marks in between: make the transaction once more.
    Again,
}

/// Judges an access and puts its marks into the transaction, which must be empty until then; `folder` must be there. One round
/// trip.
///
/// # Errors
/// `Overtaken` if a later grant has been here; `InvalidInput` for a token that no store can have given; `Broken` for marks that
/// cannot be read; whatever keeps the ensemble from answering.
///
/// # Cancel safety
/// It only reads.
pub async fn guard(client: &Client, transaction: &mut MultiWriter<'_>, folder: &str, token: &Token) -> Result<()> {
    checked(token)?;
    let spelled = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let node = format!("{folder}/{}:{}", spelled(token.label()), spelled(token.name()));
    // An old picture can only refuse whom a new one would refuse too; and if it accepts, its version does not pass.
    let found = match client.get_data(&node).await {
        Ok((data, stat)) => Some((read(&data)?, stat.version)),
        Err(zookeeper_client::Error::NoNode) => None,
        Err(error) => return Err(failed(error)),
    };
    let mut marks = found.map_or_else(Marks::default, |(marks, _)| marks);
    marks.accept(token)?;
    let data = format!("{} {}", marks.exclusive, marks.shared);
    let added = match found {
        Some((_, version)) => transaction.add_set_data(&node, data.as_bytes(), Some(version)),
        None => {
            let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
            transaction.add_create(&node, data.as_bytes(), &options)
        }
    };
    added.map_err(failed)
}

/// Commits a transaction that begins with a [`guard`]. One round trip.
///
/// # Errors
/// Whatever keeps the ensemble from carrying it out, what the caller's own operations ran into included.
///
/// # Cancel safety
/// Dropping the future may or may not carry it out.
pub async fn commit(transaction: MultiWriter<'_>) -> Result<Retry> {
    use zookeeper_client::Error::{BadVersion, NodeExists};
    let mut transaction = transaction;
    match transaction.commit().await {
        Ok(results) => Ok(Retry::Done(results)),
        Err(MultiWriteError::OperationFailed { index: 0, source: BadVersion | NodeExists }) => Ok(Retry::Again),
        Err(MultiWriteError::OperationFailed { index, source }) => {
            let message = format!("operation {index} of the transaction was refused, and so was all of it");
            Err(Error::new(ErrorKind::Denied, message).caused_by(source))
        }
        Err(MultiWriteError::RequestFailed { source }) => Err(failed(source)),
    }
}

fn read(data: &[u8]) -> Result<Marks> {
    let text = std::str::from_utf8(data).ok();
    let numbers = text.and_then(|text| text.split_once(' ')).map(|(w, s)| (w.parse(), s.parse()));
    match numbers {
        Some((Ok(exclusive), Ok(shared))) => Ok(Marks { exclusive, shared }),
        _ => Err(Error::new(ErrorKind::Broken, "the marks of the fence cannot be read")),
    }
}

fn failed(error: zookeeper_client::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "the fence could not be asked").effect_unknown().caused_by(error)
}
