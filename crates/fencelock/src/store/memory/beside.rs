//! What the memory store keeps beside its lines: buckets and registers, each behind a mutex of their own.

use super::MemoryStore;
use crate::beside::{Ask, Held, Limiters, Registers};
use crate::error::Result;
use crate::limit::bucket::Verdict;
use crate::limit::buckets::Buckets;
use crate::limit::micros;
use crate::name::Name;
use crate::store::{BoxFuture, TicketId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// More buckets than anybody has at a time; a bound all the same.
const MOST_BUCKETS: usize = 1 << 20;

/// All of it.
pub(super) struct Side {
    buckets: Buckets,
    registers: Mutex<Values>,
}

#[derive(Default)]
struct Values {
    /// The last version that was given away, of whatever register.
    last: u64,
    /// The last one that a deletion took: who saw a register without a value before that may have missed something.
    floor: u64,
    values: HashMap<Arc<str>, Kept>,
}

struct Kept {
    value: Vec<u8>,
    version: u64,
    write: TicketId,
}

impl Default for Side {
    fn default() -> Side {
        Side { buckets: Buckets::new(MOST_BUCKETS), registers: Mutex::default() }
    }
}

impl Side {
    fn values(&self) -> MutexGuard<'_, Values> {
        self.registers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Values {
    fn store_if(&mut self, name: &Name, version: u64, value: Option<&[u8]>, write: TicketId) -> Option<u64> {
        match self.values.get(name.key()) {
            Some(kept) if kept.write == write => return Some(kept.version),
            Some(kept) if kept.version != version => return None,
            Some(_) => {}
            None if version < self.floor => return None,
            None if value.is_none() => return Some(version),
            None => {}
        }
        self.last += 1;
        match value {
            Some(value) => {
                let kept = Kept { value: value.to_vec(), version: self.last, write };
                self.values.insert(name.shared_key(), kept);
            }
            None => {
                self.values.remove(name.key());
                self.floor = self.last;
            }
        }
        Some(self.last)
    }
}

impl Limiters for MemoryStore {
    fn decide<'a>(&'a self, bucket: &'a str, ask: &'a Ask) -> BoxFuture<'a, Result<Verdict>> {
        let verdict = self.shared.side.buckets.decide(bucket, ask, micros(self.shared.clock.now())).0;
        Box::pin(std::future::ready(Ok(verdict)))
    }
}

impl Registers for MemoryStore {
    fn load<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Held>> {
        let values = self.shared.side.values();
        let held = match values.values.get(name.key()) {
            Some(kept) => Held { value: Some(kept.value.clone()), version: kept.version },
            None => Held { value: None, version: values.last },
        };
        Box::pin(std::future::ready(Ok(held)))
    }

    fn store_if<'a>(
        &'a self,
        name: &'a Name,
        version: u64,
        value: Option<&'a [u8]>,
        write: TicketId,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        let stored = self.shared.side.values().store_if(name, version, value, write);
        Box::pin(std::future::ready(Ok(stored)))
    }
}
