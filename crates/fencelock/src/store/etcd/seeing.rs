//! Putting others out, watching, and looking: what is done with tickets that are not one's own.

use super::hub::{Joined, What};
use super::rpc::{KeyValue, LeaseTimeToLiveRequest, RangeRequest};
use super::{AT_ONCE, Shared, keys, txn};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::note::{Picture, Ticket};
use crate::store::{BoxStream, Hint, Line, Listed, Presence, Scope};
use futures_util::future::{Either, join_all, select};
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// How long a watch may take to be opened.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// How many keys are read at once when names are listed.
const PAGE: i64 = 1000;

impl Shared {
    pub(super) async fn expel(self: &Arc<Self>, name: &Name, token: u64) -> Result<Presence> {
        let found = self.ask(txn::whole(&keys::line(name))).await?;
        let of_it =
            |kv: &&KeyValue| u64::try_from(kv.create_revision) == Ok(token) && keys::ticket(name.key(), kv).is_some();
        let Some(kv) = found.kvs.iter().find(of_it) else { return Ok(Presence::Gone) };
        let plain = txn::take_out(&kv.key, Some(kv.create_revision));
        let mut telling = plain.clone();
        if keys::split(&kv.key).is_some_and(|(_, shape)| shape.id.is_some()) {
            // Its owner watches this key, and looks at once.
            telling.success.push(txn::put(&keys::marker(kv.lease), kv.key.to_vec(), kv.lease));
        }
        let answer = match self.ask(telling).await {
            // Without rights on that key, or without its session, nobody is told; the next renewal tells.
            Err(fault) if fault.forbidden || fault.no_lease => self.ask(plain).await?,
            answer => answer?,
        };
        Ok(if txn::took_out(&answer) { Presence::There } else { Presence::Gone })
    }

    pub(super) async fn watch(self: &Arc<Self>, scope: Scope) -> Result<BoxStream<'static, Hint>> {
        let hints = self.hints.subscribe(scope.clone());
        let joined = self.hub.join(What::Hints(scope));
        let limit = pin!(self.clock.sleep_until(self.clock.now().after(OPEN_WITHIN)));
        match select(poll_fn(|cx| joined.poll_open(cx)), limit).await {
            Either::Left((open, _)) => open?,
            Either::Right(_) => return Err(Error::unknown("the server did not open a watch in time")),
        }
        Ok(Box::pin(Watching { hints, _joined: joined }))
    }

    pub(super) async fn inspect(self: &Arc<Self>, name: &Name) -> Result<Line> {
        let found = self.ask(txn::whole(&keys::line(name))).await?;
        let of_it = |kv: &&KeyValue| keys::ticket(name.key(), kv).is_some();
        let mut leases: Vec<i64> = found.kvs.iter().filter(of_it).map(|kv| kv.lease).collect();
        leases.sort_unstable();
        leases.dedup();
        let ask = async |lease: &i64| self.ask(LeaseTimeToLiveRequest { id: *lease, keys: false }).await;
        let mut left = HashMap::new();
        for some in leases.chunks(AT_ONCE) {
            let answers = join_all(some.iter().map(ask)).await;
            // Not everybody may ask; then it is not known.
            let known = some.iter().zip(answers).filter_map(|(lease, answer)| Some((*lease, answer.ok()?.ttl)));
            left.extend(known.filter_map(|(lease, ttl)| Some((lease, Duration::from_secs(u64::try_from(ttl).ok()?)))));
        }
        let ticket = |kv: &KeyValue| {
            let ticket = keys::ticket(name.key(), kv)?;
            Some(ticket.map(|ticket| Ticket { expires_in: left.get(&kv.lease).copied(), ..ticket }))
        };
        Ok(Picture::new(found.kvs.iter().filter_map(ticket).collect::<Result<_>>()?).line())
    }

    pub(super) async fn list(self: &Arc<Self>, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
        let (mut from, to) = keys::prefix(prefix);
        let mut lines: BTreeMap<String, Vec<KeyValue>> = BTreeMap::new();
        loop {
            let page =
                RangeRequest { key: from.clone(), range_end: to.clone(), limit: PAGE, ..RangeRequest::default() };
            let found = self.ask(page).await?;
            let last = found.kvs.last().map(|kv| kv.key.clone());
            for kv in found.kvs {
                if let Some((name, shape)) = keys::split(&kv.key)
                    && shape.lease == kv.lease
                    && after.is_none_or(|after| name > after)
                {
                    lines.entry(name.to_string()).or_default().push(kv);
                }
            }
            match last.filter(|_| found.more) {
                Some(last) => from = [&last[..], &[0]].concat().into(),
                None => break,
            }
        }
        let mut listed = Vec::new();
        for (name, kvs) in lines.iter().take(limit) {
            listed.extend(keys::picture(name, kvs)?.listed(name));
        }
        Ok(listed)
    }
}

/// Hints, and the watch that they come from.
struct Watching {
    hints: BoxStream<'static, Hint>,
    _joined: Joined,
}

impl futures_core::Stream for Watching {
    type Item = Hint;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        self.hints.as_mut().poll_next(cx)
    }
}
