//! Registers: a key each, `%fencelock/register/<name>`, that holds the id of the write and the value. A version is the revision of
//! the key, so it never comes back; doubled, and one more where there is a value, so that a write knows what was seen.
//!
//! A key that is not there says nothing of what it was. So every deletion of a register writes its id to one key for all of them:
//! whoever saw no value, and finds none, may still have missed one if that key is newer than what it saw, and looks again.

use super::rpc::{RangeRequest, RangeResponse, TxnRequest};
use super::{EtcdStore, txn};
use crate::beside::{Held, Registers};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::{BoxFuture, TicketId};
use prost::bytes::Bytes;

/// What the last deletion wrote.
const DELETED: &[u8] = b"%fencelock/deleted";
/// Before the value: the id of its write.
const ID: usize = 16;

fn key(name: &Name) -> Bytes {
    format!("%fencelock/register/{}", name.key()).into()
}

/// The version of what was found, or not found, in this revision.
fn version(revision: i64, value: bool) -> u64 {
    u64::try_from(revision).unwrap_or(0).saturating_mul(2).saturating_add(value.into())
}

fn one(key: &Bytes) -> RangeRequest {
    RangeRequest { key: key.clone(), ..RangeRequest::default() }
}

impl Registers for EtcdStore {
    /// One round trip.
    fn load<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Held>> {
        Box::pin(async move {
            let found = self.shared.ask(one(&key(name))).await?;
            match found.kvs.first() {
                Some(kv) if kv.value.len() >= ID => {
                    Ok(Held { value: Some(kv.value[ID..].to_vec()), version: version(kv.mod_revision, true) })
                }
                Some(_) => {
                    Err(Error::new(ErrorKind::Broken, "a register was written by something else").named(name.shown()))
                }
                // Whatever comes has a larger one.
                None => Ok(Held {
                    value: None,
                    version: version(found.header.ok_or_else(txn::unreadable)?.revision, false),
                }),
            }
        })
    }

    /// One round trip.
    fn store_if<'a>(
        &'a self,
        name: &'a Name,
        seen: u64,
        value: Option<&'a [u8]>,
        write: TicketId,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        Box::pin(async move {
            let (key, deleted) = (key(name), Bytes::from_static(DELETED));
            let revision = i64::try_from(seen / 2).unwrap_or(i64::MAX - 1);
            let there = seen % 2 == 1;
            let id = write.as_bytes();
            let write = value.map(|value| txn::put(&key, [&id[..], value].concat(), 0));
            let question = TxnRequest {
                // As it was seen; or nothing there, as it was seen, and nothing was in between.
                compare: if there {
                    vec![txn::changed_in(&key, revision)]
                } else {
                    vec![txn::made_in(&key, 0), txn::not_after(&deleted, revision)]
                },
                success: match write {
                    Some(write) => vec![write],
                    None if there => vec![txn::delete(&key), txn::put(&deleted, id.to_vec(), 0)],
                    None => Vec::new(),
                },
                failure: vec![txn::read_one(one(&key)), txn::read_one(one(&deleted))],
            };
            let answer = self.shared.ask(question).await?;
            if answer.succeeded {
                let unchanged = value.is_none() && !there;
                let now = version(txn::revision(&answer)?, value.is_some());
                return Ok(Some(if unchanged { seen } else { now }));
            }
            // It may be ours, whose answer was lost: the value first, then the deletion.
            let found = txn::reads(answer);
            let ours = |(found, value): (&RangeResponse, bool)| {
                let kv = found.kvs.first().filter(|kv| kv.value.starts_with(&id[..]))?;
                Some(version(kv.mod_revision, value))
            };
            Ok(found.iter().zip([true, false]).find_map(ours))
        })
    }
}
