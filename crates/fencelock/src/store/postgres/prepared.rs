//! One connection, and the statements that it has been prepared for.
//!
//! Reading and planning the text of a call costs the server more than the call itself, so each text is sent once for each
//! connection, under a name. Such names belong to one connection of the server: where a pooler may share those between
//! transactions, the whole text is sent each time.

use super::client::Params;
use super::fault;
use crate::store::sql::lock;
use futures_util::TryStreamExt;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::OnceCell;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row, Statement};

/// The statements by their texts. There are some dozen texts, so nothing is ever taken out.
type Statements = Mutex<HashMap<Box<str>, Arc<OnceCell<Statement>>>>;

pub(super) struct Connection {
    pub(super) client: tokio_postgres::Client,
    statements: Option<Statements>,
}

impl Connection {
    /// `named`: that no pooler shares this connection between transactions is known.
    pub(super) fn new(client: tokio_postgres::Client, named: bool) -> Connection {
        Connection { client, statements: named.then(Statements::default) }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Whether a call with this text is one round trip.
    pub(super) fn is_prepared(&self, sql: &str) -> bool {
        self.statements
            .as_ref()
            .is_some_and(|statements| lock(statements).get(sql).is_some_and(|cell| cell.initialized()))
    }

    /// One round trip; one more for a text that is new to this connection.
    pub(super) async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        let Some(statements) = &self.statements else { return self.client.query_typed(sql, params).await };
        let known = lock(statements).get(sql).cloned();
        let cell = known.unwrap_or_else(|| lock(statements).entry(sql.into()).or_default().clone());
        // Of several who want the same one at once, one prepares it. If that one is dropped, another one does.
        let prepare = async || {
            let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
            self.client.prepare_typed(sql, &types).await
        };
        let statement = cell.get_or_try_init(prepare).await?;
        let answer = async {
            self.client.query_raw(statement, params.iter().map(|(value, _)| *value)).await?.try_collect().await
        };
        match answer.await {
            // Nothing was done. It is made anew by the next call.
            Err(error) if fault::is_forgotten(&error) => {
                lock(statements).remove(sql);
                self.client.query_typed(sql, params).await
            }
            done => done,
        }
    }
}
