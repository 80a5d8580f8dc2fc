//! `?replicas=K`: a grant counts only when K replicas have confirmed it, and so does a renewal.
//!
//! `WAIT` asks for what the same connection has written before, and the connection stands still meanwhile. So what has to be
//! confirmed goes over connections of its own, one call at a time on each: the script, a write that is never left out (a
//! script may find nothing to write), and the question, all in one round trip.

use super::answer::{standings, unreadable};
use super::connection::{Live, Pooled};
use super::script::Call;
use super::waiters::Standing;
use super::{Shared, fault};
use crate::error::{Error, Result};
use crate::store::{Place, Waited};
use futures_util::future::{Either, select};
use redis::{Cmd, Pipeline, RedisResult, Value};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Written before the question; says nothing.
const MARK: &str = "fencelock:confirm";
/// How long an answer that is not needed is waited for, so that its connection can be used again.
const MOMENT: Duration = Duration::from_millis(20);
/// The longest that replicas may take.
const MOST: Duration = Duration::from_secs(1);

/// How long replicas may take with something that has this lease: there must be time to try again.
pub(super) fn patience(lease: Option<Duration>) -> Duration {
    lease.map_or(MOST, |lease| (lease / 4).clamp(Duration::from_millis(20), MOST))
}

impl Shared {
    /// Calls a script whose answer counts only when it has reached the replicas.
    ///
    /// One round trip, and one more to the replicas.
    pub(super) async fn call_confirmed(self: &Arc<Self>, call: Call, within: Duration) -> Result<Value> {
        match self.connections.replicas {
            None => self.call(call).await,
            Some(wanted) => Box::pin(self.call_replicas(call, wanted, within)).await,
        }
    }

    async fn call_replicas(self: &Arc<Self>, call: Call, wanted: usize, within: Duration) -> Result<Value> {
        let this = self.clone();
        let asking = match Handle::try_current() {
            // Whoever gives up half-way leaves a connection behind that stands still: somebody has to see to it.
            Ok(here) => {
                let pooled = self.connections.pooled(&here).await?;
                here.spawn(async move { this.ask_replicas(pooled, &call, wanted, within).await })
            }
            // From outside of any runtime the library thread does it.
            Err(_) => {
                let Some(host) = self.host.get() else { return Err(unreadable()) };
                let there = host.runtime().clone();
                host.runtime().spawn(async move {
                    let pooled = this.connections.pooled(&there).await?;
                    this.ask_replicas(pooled, &call, wanted, within).await
                })
            }
        };
        asking.await.map_err(|_| Error::unknown("the runtime has ended"))?
    }

    async fn ask_replicas(&self, pooled: Pooled, call: &Call, wanted: usize, within: Duration) -> Result<Value> {
        let address = &self.connections.address;
        let (mut answer, mut confirmed) = self.ask_once(&pooled.live, call.by_hash(), wanted, within).await;
        if answer.as_ref().is_err_and(|error| error.kind() == redis::ServerErrorKind::NoScript.into()) {
            (answer, confirmed) = self.ask_once(&pooled.live, &call.in_full(), wanted, within).await;
        }
        if confirmed.is_some() {
            pooled.give_back();
        }
        let answer = answer.map_err(|error| fault::asking(error, address))?;
        if gives_nothing(&answer) {
            return Ok(answer);
        }
        let confirmed = confirmed.ok_or_else(unreadable)?;
        let confirmed = confirmed.map_err(|error| fault::asking(error, address).effect_unknown())?;
        if confirmed < wanted {
            let message =
                format!("{confirmed} of {wanted} replicas have confirmed it in time: it might not outlive the master");
            return Err(Error::unknown(message));
        }
        Ok(answer)
    }

    /// The script's answer and how many replicas have it; nothing of the latter where it does not matter and is not told at
    /// once. The connection waits for it then.
    async fn ask_once(
        &self,
        live: &Live,
        script: &Cmd,
        wanted: usize,
        within: Duration,
    ) -> (RedisResult<Value>, Option<RedisResult<usize>>) {
        let question = question(wanted, within);
        let confirmed = pin!(live.send_all(&question, 2));
        // Sent together; the script is answered first.
        let (answer, confirmed) = match select(pin!(live.try_send(script)), confirmed).await {
            Either::Left(answered) => answered,
            Either::Right((confirmed, answer)) => return (answer.await, Some(confirmed.and_then(how_many))),
        };
        if answer.as_ref().is_ok_and(|answer| !gives_nothing(answer)) {
            return (answer, Some(confirmed.await.and_then(how_many)));
        }
        let moment = pin!(self.clock.sleep_until(self.clock.now().after(MOMENT)));
        match select(confirmed, moment).await {
            Either::Left((confirmed, _)) => (answer, Some(confirmed.and_then(how_many))),
            Either::Right(_) => (answer, None),
        }
    }

    /// A waiter was let in by somebody else's connection: that counts when the ticket is found where we ask, and what is
    /// written after it has reached the replicas.
    pub(super) async fn confirm_grant(self: &Arc<Self>, place: &Place, found: Waited) -> Result<Waited> {
        if self.connections.replicas.is_none() || !matches!(found, Waited::Admitted { .. }) {
            return Ok(found);
        }
        let call = Shared::look_call(std::slice::from_ref(place));
        let answer = self.call_confirmed(call, patience(None)).await?;
        match standings(answer, 1)?.pop() {
            Some(Standing::Inside { token, .. }) => Ok(Waited::Admitted { token }),
            Some(Standing::Waiting { .. }) => Ok(Waited::Waiting),
            Some(Standing::Gone) => Ok(Waited::Gone),
            None => Err(unreadable()),
        }
    }
}

fn question(wanted: usize, within: Duration) -> Pipeline {
    let mut pipe = redis::pipe();
    pipe.cmd("SET").arg(MARK).arg("1").arg("PX").arg("1000");
    pipe.cmd("WAIT").arg(wanted).arg(within.as_millis().to_string());
    pipe
}

/// What the question was answered with.
fn how_many(answers: Vec<Value>) -> RedisResult<usize> {
    let answers = answers.into_iter().map(Value::extract_error).collect::<RedisResult<Vec<Value>>>()?;
    Ok(answers.into_iter().next_back().map(redis::from_redis_value).transpose()?.unwrap_or(0))
}

/// Whether no ticket is said to be inside or waiting: then nothing can get lost.
fn gives_nothing(answer: &Value) -> bool {
    let gives = |answer: &Value| match answer {
        Value::BulkString(text) => matches!(text.first(), Some(b'1' | b'2')),
        Value::SimpleString(text) => text.starts_with(['1', '2']),
        _ => true,
    };
    match answer {
        Value::Array(answers) => !answers.iter().any(gives),
        one => !gives(one),
    }
}
