//! Buckets in memory, by key, and never more than so many of them: for local limiters and the memory store.

use super::bucket::{Bucket, Verdict};
use crate::beside::Ask;
use crate::sync::{Mutex, lock};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// So many that are as good as none are thrown away for each one that is written, so that the rest never piles up.
const SWEPT: usize = 2;

/// All buckets of one place.
#[derive(Debug)]
pub(crate) struct Buckets {
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Each with the microsecond from which on it is as good as none.
    buckets: HashMap<Arc<str>, (Bucket, u64)>,
    by_end: BTreeSet<(u64, Arc<str>)>,
}

impl Buckets {
    pub(crate) fn new(most: usize) -> Buckets {
        Buckets { most: most.max(1), kept: Mutex::new(Kept::default()) }
    }

    /// Decides, and says what it left.
    pub(crate) fn decide(&self, key: &str, ask: &Ask, now: u64) -> (Verdict, Option<Bucket>) {
        let mut kept = lock(&self.kept);
        let found = kept.buckets.get_key_value(key).map(|(key, (bucket, _))| (key.clone(), *bucket));
        let (verdict, left) = ask.rule.decide(found.as_ref().map(|(_, bucket)| *bucket), now, ask.count, ask.at_most);
        if let (true, Some(left)) = (verdict.granted, left) {
            let key = found.map_or_else(|| Arc::from(key), |(key, _)| key);
            kept.put(key, left, left.at.saturating_add(ask.rule.fresh_after(&left)));
            kept.sweep(now, self.most);
        }
        (verdict, left)
    }

    /// Takes a decision back if nobody was let through after it.
    pub(crate) fn take_back(&self, key: &str, ask: &Ask, left: Bucket) {
        let mut kept = lock(&self.kept);
        let found = kept.buckets.get_key_value(key).map(|(key, (bucket, _))| (key.clone(), *bucket));
        if let Some((key, bucket)) = found
            && bucket == left
        {
            let less = ask.rule.take_back(bucket, ask.count);
            kept.put(key, less, less.at.saturating_add(ask.rule.fresh_after(&less)));
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        lock(&self.kept).buckets.len()
    }
}

impl Kept {
    fn put(&mut self, key: Arc<str>, bucket: Bucket, end: u64) {
        if let Some((_, before)) = self.buckets.insert(key.clone(), (bucket, end)) {
            self.by_end.remove(&(before, key.clone()));
        }
        self.by_end.insert((end, key));
    }

    /// Where there are too many, the one that has the least to remember goes first.
    fn sweep(&mut self, now: u64, most: usize) {
        for _ in 0..SWEPT {
            let too_many = self.buckets.len() > most;
            match self.by_end.first() {
                Some((end, _)) if *end <= now || too_many => {}
                _ => return,
            }
            if let Some((_, key)) = self.by_end.pop_first() {
                self.buckets.remove(&key);
            }
        }
    }
}
