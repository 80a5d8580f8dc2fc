//! Registers as rows of a table of their own; a write is one call of a function.

use super::PostgresStore;
use super::verbs::{get, number};
use crate::beside::{Held, Registers};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::sql::text;
use crate::store::{BoxFuture, TicketId};
use tokio_postgres::types::Type;

fn missing() -> Error {
    Error::new(ErrorKind::Broken, "the database gave no answer").effect_unknown()
}

impl Registers for PostgresStore {
    /// One round trip.
    fn load<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Held>> {
        Box::pin(async move {
            let sql = "SELECT coalesce(r.version, l.floor) AS version, r.value FROM fencelock.layout l \
                       LEFT JOIN fencelock.register r ON r.name = $1";
            let rows = self.client.call(sql, &[(&name.key(), Type::TEXT)]).await?;
            let row = rows.first().ok_or_else(missing)?;
            Ok(Held { value: get(row, "value")?, version: number(get(row, "version")?) })
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
            let (long, seen) = (name.long().map(text), i64::try_from(version).unwrap_or(i64::MAX));
            let rows = self
                .client
                .call(
                    "SELECT fencelock.store_if($1, $2, $3, $4, $5) AS version",
                    &[
                        (&name.key(), Type::TEXT),
                        (&long, Type::TEXT),
                        (&seen, Type::INT8),
                        (&value, Type::BYTEA),
                        (&&write.as_bytes()[..], Type::BYTEA),
                    ],
                )
                .await?;
            let row = rows.first().ok_or_else(missing)?;
            Ok(get::<Option<i64>>(row, "version")?.map(number))
        })
    }
}
