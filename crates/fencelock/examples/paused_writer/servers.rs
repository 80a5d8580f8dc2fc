//! Resources on a server: which one, the URL says.

use super::{Anyhow, Resource};
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis", feature = "zookeeper"))]
use fencelock::{Error, ErrorKind, Result, Token, fence, store::BoxFuture};

/// The resource behind this URL of a store.
pub(crate) async fn at(url: &str) -> Anyhow<Box<dyn Resource>> {
    let url = url.split('?').next().unwrap_or(url);
    let (scheme, _place) = url.split_once("://").ok_or("a URL has :// in it")?;
    Ok(match scheme {
        #[cfg(feature = "redis")]
        "redis" => {
            let client = fencelock::redis::Client::open(url)?;
            Box::new(Redis(client.get_multiplexed_async_connection().await?))
        }
        #[cfg(feature = "postgres")]
        "postgres" => {
            let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            client.batch_execute("CREATE TABLE IF NOT EXISTS paused_writer (pieces BIGINT)").await?;
            client.batch_execute(fence::sql::table(fence::sql::Dialect::Postgres)).await?;
            Box::new(Postgres(client))
        }
        #[cfg(feature = "mysql")]
        "mysql" => {
            use mysql_async::prelude::Queryable;
            let mut connection = mysql_async::Conn::from_url(url).await?;
            connection.query_drop("CREATE TABLE IF NOT EXISTS paused_writer (pieces BIGINT) ENGINE = InnoDB").await?;
            connection.query_drop(fence::sql::table(fence::sql::Dialect::MySql)).await?;
            Box::new(MySql(connection))
        }
        #[cfg(feature = "zookeeper")]
        "zookeeper" => Box::new(ZooKeeper::connect(_place).await?),
        #[cfg(feature = "etcd")]
        "etcd" => {
            let server = _place.split(',').next().unwrap_or(_place);
            let port = if server.contains(':') { "" } else { ":2379" };
            Box::new(Etcd(super::gateway::Gateway(format!("{server}{port}"))))
        }
        other => Err(format!("no resource for {other}:// here, or its feature is not built in"))?,
    })
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "zookeeper"))]
fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Unavailable, "the shop's own server").caused_by(error)
}

#[cfg(feature = "redis")]
struct Redis(fencelock::redis::aio::MultiplexedConnection);

#[cfg(feature = "redis")]
impl Resource for Redis {
    fn name(&self) -> &'static str {
        "Redis"
    }

    fn write<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let sell = fence::redis::FencedScript::new("return redis.call('DECRBY', KEYS[1], ARGV[1])");
            let _left: i64 = sell.call(&mut self.0, "paused_writer:marks", token, &["paused_writer"], &["1"]).await?;
            Ok(())
        })
    }
}

#[cfg(feature = "postgres")]
struct Postgres(tokio_postgres::Client);

#[cfg(feature = "postgres")]
impl Resource for Postgres {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    fn write<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let mut transaction = self.0.transaction().await.map_err(failed)?;
            fencelock::sql::fence_in(&mut transaction, token).await?;
            transaction.execute("INSERT INTO paused_writer VALUES (-1)", &[]).await.map_err(failed)?;
            transaction.commit().await.map_err(failed)
        })
    }
}

#[cfg(feature = "mysql")]
struct MySql(mysql_async::Conn);

#[cfg(feature = "mysql")]
impl Resource for MySql {
    fn name(&self) -> &'static str {
        "MySQL"
    }

    fn write<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        use mysql_async::prelude::Queryable;
        Box::pin(async {
            let mut transaction = self.0.start_transaction(mysql_async::TxOpts::default()).await.map_err(failed)?;
            fencelock::sql::fence_in(&mut transaction, token).await?;
            transaction.query_drop("INSERT INTO paused_writer VALUES (-1)").await.map_err(failed)?;
            transaction.commit().await.map_err(failed)
        })
    }
}

#[cfg(feature = "zookeeper")]
struct ZooKeeper(fencelock::zookeeper_client::Client);

#[cfg(feature = "zookeeper")]
impl ZooKeeper {
    async fn connect(servers: &str) -> Anyhow<ZooKeeper> {
        use fencelock::zookeeper_client::{Acls, Client, CreateMode, Error::NodeExists};
        let client = Client::connect(servers).await?;
        for node in ["/paused_writer", "/paused_writer/marks", "/paused_writer/stock"] {
            match client.create(node, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await {
                Ok(_) | Err(NodeExists) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(ZooKeeper(client))
    }
}

#[cfg(feature = "zookeeper")]
impl Resource for ZooKeeper {
    fn name(&self) -> &'static str {
        "ZooKeeper"
    }

    fn write<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        use fence::zookeeper::{Retry, commit, guard};
        Box::pin(async {
            loop {
                let mut write = self.0.new_multi_writer();
                guard(&self.0, &mut write, "/paused_writer/marks", token).await?;
                write.add_set_data("/paused_writer/stock", b"99", None).map_err(failed)?;
                if let Retry::Done(_) = commit(write).await? {
                    return Ok(());
                }
            }
        })
    }
}

#[cfg(feature = "etcd")]
struct Etcd(super::gateway::Gateway);

#[cfg(feature = "etcd")]
impl Resource for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn write<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let access = fence::etcd::access("paused_writer/marks", token)?;
            self.0.put(&access, "paused_writer/stock", "99").await
        })
    }
}
