//! Looking at lines without being in them: one of them, or all.

use super::answer::{number, unreadable};
use super::script::{self, Call};
use super::{Shared, inbox, record};
use crate::error::Result;
use crate::name::Name;
use crate::store::{Line, Listed};
use futures_util::future::try_join_all;
use redis::Value;
use std::sync::Arc;

/// A line, as the server tells of it.
#[derive(Clone)]
struct Found {
    now: u64,
    capacity: u32,
    inside: usize,
    waiting: usize,
    records: Vec<String>,
}

impl Found {
    fn all(value: Value, count: usize) -> Result<Vec<Found>> {
        let lines: Vec<Vec<String>> = redis::from_redis_value(value).map_err(|_| unreadable())?;
        if lines.len() != count {
            return Err(unreadable());
        }
        lines.into_iter().map(Found::one).collect()
    }

    fn one(line: Vec<String>) -> Result<Found> {
        let at = |i: usize| line.get(i).map(String::as_str);
        Ok(Found {
            now: number(at(0))?,
            capacity: number(at(1))?,
            inside: number(at(2))?,
            waiting: number(at(3))?,
            records: line.into_iter().skip(4).collect(),
        })
    }
}

impl Shared {
    pub(super) async fn inspect(self: &Arc<Self>, name: &Name) -> Result<Line> {
        let mut call = Call::new(&script::INSPECT, 1, 1);
        call.line(name);
        call.arg("1");
        let found = Found::all(self.call(call).await?, 1)?.pop().ok_or_else(unreadable)?;
        let mut seen: Vec<_> =
            found.records.iter().map(|record| record::seen(record, found.now)).collect::<Result<_>>()?;
        seen.sort_by_key(|seen| seen.token);
        let (inside, waiting) = seen.into_iter().partition(|seen| seen.admitted.is_some());
        Ok(Line { capacity: found.capacity, inside, waiting })
    }

    /// The counts and the first ticket of each of these lines: one round trip.
    async fn heads(self: &Arc<Self>, names: &[String]) -> Result<Vec<Found>> {
        let mut call = Call::new(&script::INSPECT, names.len(), names.len());
        names.iter().for_each(|name| call.line(&Name::from_key(name, None)));
        names.iter().for_each(|_| call.arg("0"));
        Found::all(self.call(call).await?, names.len())
    }

    pub(super) async fn list(self: &Arc<Self>, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
        // An empty line has the first key only, one with company all but the first.
        let pattern = format!("{}*", script::line_key(&format!("{}*", inbox::literally(prefix))));
        let mut names = std::collections::BTreeSet::new();
        for live in self.everywhere().await? {
            let mut cursor = String::from("0");
            loop {
                let mut cmd = redis::cmd("SCAN");
                cmd.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000);
                let page = live.send(&cmd, &self.connections.address).await?;
                let (next, keys): (String, Vec<String>) = redis::from_redis_value(page).map_err(|_| unreadable())?;
                let found = keys.iter().filter_map(|key| script::name_in(key));
                names.extend(found.filter(|name| after.is_none_or(|after| *name > after)).map(String::from));
                cursor = next;
                if cursor == "0" {
                    break;
                }
            }
        }
        let names: Vec<String> = names.into_iter().collect();
        let mut listed = Vec::new();
        for names in names.chunks(100) {
            if listed.len() >= limit {
                break;
            }
            let together = if self.connections.cluster().is_some() { 1 } else { names.len() };
            let found = try_join_all(names.chunks(together).map(|names| self.heads(names))).await?.concat();
            for (name, found) in names.iter().zip(found).filter(|(_, found)| found.inside + found.waiting > 0) {
                let head = found.records.first();
                let long = head.and_then(|record| record::long_name(record));
                let head = head.map(|record| record::seen(record, found.now)).transpose()?;
                listed.push(Listed {
                    name: Name::from_key(name, long.as_deref()),
                    inside: found.inside,
                    waiting: found.waiting,
                    held: head.and_then(|head| head.admitted.or(head.entered)),
                });
            }
        }
        listed.truncate(limit);
        Ok(listed)
    }
}
