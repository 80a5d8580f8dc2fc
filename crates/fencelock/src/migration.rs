//! The tables of a store that keeps some: made, brought up to date, or printed for somebody who may.

use crate::connect;
use crate::error::Result;
use std::collections::BTreeMap;

/// What has to be there before a store can be used: the tables of PostgreSQL and of MySQL or MariaDB.
///
/// A connection makes them by itself where nothing is there yet and the user may. Otherwise this is the way, and the way from
/// an older layout to this version's. It may be run again, and while others use the store.
///
/// ```no_run
/// # async fn migrate() -> fencelock::Result<()> {
/// # let url = "memory:";
/// if let Some(migration) = fencelock::Migration::of(url)? {
///     println!("{}", migration.sql());
///     migration.run().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(not(any(feature = "mysql", feature = "postgres")), allow(dead_code, reason = "there is none then"))]
pub struct Migration {
    url: String,
    options: BTreeMap<String, String>,
    database: Database,
}

#[derive(Clone, Copy, Debug)]
enum Database {
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "mysql")]
    Mysql,
}

/// What a [`Migration`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The layout that was there; `None` if there was none.
    pub from: Option<i64>,
    /// The layout that is there now.
    pub to: i64,
}

impl Migration {
    /// What the store of this URL needs; `None` for one that has no tables, or makes them by itself. Connects to nothing.
    ///
    /// # Errors
    /// `InvalidInput` for a URL that makes no sense, `Unsupported` for a store that this build does not have.
    pub fn of(url: &str) -> Result<Option<Migration>> {
        let target = connect::parse(url)?;
        let (scheme, url, options) = target.parts();
        let database = match scheme {
            #[cfg(feature = "postgres")]
            "postgres" => {
                let schema = options.get("schema").map_or(crate::store::postgres::SCHEMA, String::as_str);
                crate::store::postgres::check_schema(schema)?;
                Some(Database::Postgres)
            }
            #[cfg(feature = "mysql")]
            "mysql" => Some(Database::Mysql),
            _ => None,
        };
        Ok(database.map(|database| Migration { url, options: options.clone(), database }))
    }

    /// The SQL that makes everything, for the database's own client. It may be run again. The rights that a mere user of it
    /// needs stand at its end, as comments.
    #[must_use]
    pub fn sql(&self) -> String {
        match self.database {
            #[cfg(feature = "postgres")]
            Database::Postgres => {
                let schema = self.options.get("schema").map_or(crate::store::postgres::SCHEMA, String::as_str);
                crate::store::postgres::PostgresStore::layout(schema)
            }
            #[cfg(feature = "mysql")]
            Database::Mysql => crate::store::mysql::MysqlStore::layout().to_string(),
        }
    }

    /// Makes what is missing, and brings an older layout up to date. A few round trips.
    ///
    /// # Errors
    /// `Denied` if the user may not, `Broken` for a layout that is newer than this version's, `Unavailable` if there is no answer.
    ///
    /// # Cancel safety
    /// It may go on in the database, or have been done in part on MySQL. Run it again.
    pub async fn run(&self) -> Result<Migrated> {
        match self.database {
            #[cfg(feature = "postgres")]
            Database::Postgres => {
                let from = crate::store::postgres::migrate(&self.url, &self.options).await?;
                Ok(Migrated { from, to: crate::store::postgres::VERSION.into() })
            }
            #[cfg(feature = "mysql")]
            Database::Mysql => {
                let from = crate::store::mysql::migrate(&self.url, &self.options).await?;
                Ok(Migrated { from, to: crate::store::mysql::VERSION })
            }
        }
    }
}
