//! What the server keeps beside the lines: the buckets of limiters and the values of registers, one key each, each verb one script.

use super::RedisStore;
use super::answer::{number, unreadable};
use super::script::{self, Call};
use crate::beside::{Ask, Held, Limiters, Registers};
use crate::error::Result;
use crate::limit::bucket::Verdict;
use crate::name::Name;
use crate::store::{BoxFuture, TicketId};

fn register(name: &Name) -> String {
    format!("fencelock:register:{{{}}}", name.key())
}

impl Limiters for RedisStore {
    /// One round trip.
    fn decide<'a>(&'a self, bucket: &'a str, ask: &'a Ask) -> BoxFuture<'a, Result<Verdict>> {
        Box::pin(async move {
            let mut call = Call::beside(&script::LIMIT, format!("fencelock:bucket:{{{bucket}}}"));
            let rule = &ask.rule;
            let numbers = [u64::from(rule.leaky), rule.cost, rule.give, rule.room, rule.free, ask.count, ask.at_most];
            numbers.iter().for_each(|number| call.arg(number));
            let answer: String = redis::from_redis_value(self.shared.call(call).await?).map_err(|_| unreadable())?;
            let (granted, wait) = answer.split_once(' ').ok_or_else(unreadable)?;
            Ok(Verdict { granted: granted == "1", wait: number(Some(wait))? })
        })
    }
}

impl Registers for RedisStore {
    /// One round trip.
    fn load<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Held>> {
        Box::pin(async move {
            let call = Call::beside(&script::LOAD, register(name));
            let mut answer: Vec<Vec<u8>> =
                redis::from_redis_value(self.shared.call(call).await?).map_err(|_| unreadable())?;
            let value = if answer.len() == 3 { answer.pop() } else { None };
            let version = number(answer.get(1).and_then(|version| std::str::from_utf8(version).ok()))?;
            Ok(Held { value, version })
        })
    }

    /// One round trip.
    fn store_if<'a>(
        &'a self,
        name: &'a Name,
        version: u64,
        value: Option<&'a [u8]>,
        write: TicketId,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        Box::pin(async move {
            let mut call = Call::beside(&script::STORE_IF, register(name));
            call.arg(version);
            call.arg(write.to_string());
            call.arg(if value.is_some() { "1" } else { "0" });
            call.arg(value.unwrap_or_default());
            let answer: String = redis::from_redis_value(self.shared.call(call).await?).map_err(|_| unreadable())?;
            let version = number(Some(&answer))?;
            Ok((version != 0).then_some(version))
        })
    }
}
