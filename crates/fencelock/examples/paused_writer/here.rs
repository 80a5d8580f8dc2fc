//! Resources that need no server: a gate in this process, a SQLite database, an HTTP service.

use super::{Anyhow, Resource};
use fencelock::fence::{self, Gate};
use fencelock::rusqlite::Connection;
use fencelock::store::BoxFuture;
use fencelock::{Error, ErrorKind, Result, Token};
use std::path::Path;

pub(crate) fn all(folder: &Path) -> Anyhow<Vec<Box<dyn Resource>>> {
    let shop = Connection::open(folder.join("shop.db"))?;
    fence::sqlite::migrate(&shop)?;
    shop.execute_batch("CREATE TABLE stock (pieces INTEGER); INSERT INTO stock VALUES (100)")?;
    Ok(vec![
        Box::new(InProcess(Gate::new())),
        Box::new(Sqlite(shop)),
        #[cfg(feature = "tower")]
        Box::new(http::Http::new()),
    ])
}

struct InProcess(Gate);

impl Resource for InProcess {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn write<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let pass = self.0.enter(token).await?;
            // ... the write ...
            drop(pass);
            Ok(())
        })
    }
}

struct Sqlite(Connection);

impl Sqlite {
    fn sell(&mut self, token: &Token) -> Result<()> {
        let failed = |error| Error::new(ErrorKind::Unavailable, "the shop's own database").caused_by(error);
        let transaction = self.0.transaction().map_err(failed)?;
        fence::sqlite::accept(&transaction, token)?;
        transaction.execute("UPDATE stock SET pieces = pieces - 1", ()).map_err(failed)?;
        transaction.commit().map_err(failed)
    }
}

impl Resource for Sqlite {
    fn name(&self) -> &'static str {
        "SQLite"
    }

    fn write<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        Box::pin(std::future::ready(self.sell(token)))
    }
}

#[cfg(feature = "tower")]
mod http {
    use super::*;
    use ::http::{Request, Response, StatusCode};
    use fence::tower::{FenceLayer, Fenced, TokenLayer};
    use std::convert::Infallible;
    use tower::{Layer, ServiceExt, service_fn, util::BoxCloneService};

    /// The service, and in `write` its client.
    pub(super) struct Http(Fenced<BoxCloneService<Request<String>, Response<String>, Infallible>>);

    impl Http {
        pub(super) fn new() -> Http {
            let service = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) });
            Http(FenceLayer::new(Gate::new()).layer(BoxCloneService::new(service)))
        }
    }

    impl Resource for Http {
        fn name(&self) -> &'static str {
            "HTTP"
        }

        fn write<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
            let client = TokenLayer::new(token).layer(self.0.clone());
            Box::pin(async {
                let Ok(response) = client.oneshot(Request::new(String::new())).await;
                match response.status() {
                    StatusCode::OK => Ok(()),
                    StatusCode::PRECONDITION_FAILED => Err(Error::new(ErrorKind::Overtaken, response.into_body())),
                    other => Err(Error::new(ErrorKind::Broken, other.to_string())),
                }
            })
        }
    }
}
