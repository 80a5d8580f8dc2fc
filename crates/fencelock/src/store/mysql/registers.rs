//! Registers as rows of a table of their own; a write is one script.

use super::MysqlStore;
use super::script::{broken, bytes, int, maybe, number, raw};
use crate::beside::{Held, Registers};
use crate::error::Result;
use crate::name::Name;
use crate::store::{BoxFuture, TicketId};

/// A template with its words put in; comments are for readers.
fn script(template: &str, words: &[(&str, &str)]) -> String {
    let lines = template.lines().filter(|line| !line.starts_with("--"));
    let mut script = lines.collect::<Vec<_>>().join("\n");
    for (word, value) in words {
        script = script.replace(&format!("{{{word}}}"), value);
    }
    script
}

impl Registers for MysqlStore {
    /// One round trip.
    fn load<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Held>> {
        Box::pin(async move {
            let script = script(include_str!("load.sql"), &[("name", &bytes(name.key().as_bytes()))]);
            let answers = self.client.run(&script).await?;
            let [found, floor] = answers.as_slice() else { return Err(broken()) };
            match found.first() {
                Some(row) => {
                    let value = raw(row, 1)?.ok_or_else(broken)?.to_vec();
                    Ok(Held { value: Some(value), version: number(int(row, 0)?) })
                }
                None => Ok(Held { value: None, version: number(int(floor.first().ok_or_else(broken)?, 0)?) }),
            }
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
            let words = [
                ("name", bytes(name.key().as_bytes())),
                ("said", maybe(name.long())),
                ("seen", version.to_string()),
                ("written", bytes(write.as_bytes())),
                ("value", value.map_or("NULL".into(), bytes)),
            ];
            let words = words.each_ref().map(|(word, value)| (*word, value.as_str()));
            let answers = self.client.run(&script(include_str!("store_if.sql"), &words)).await?;
            let row = answers.last().and_then(|rows| rows.first()).ok_or_else(broken)?;
            Ok(int(row, 0)?.map(|version| number(Some(version))))
        })
    }
}
