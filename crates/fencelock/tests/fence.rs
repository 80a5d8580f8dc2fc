//! Every checker of fencing tokens, held to the one suite; and checkers with a planted bug, which the suite finds out.

#[path = "redis_store/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the Redis store")]
mod server;

use fencelock::fence::tower::{FenceLayer, Fenced, TokenLayer};
use fencelock::fence::{self, Gate, Overtaken, header};
use fencelock::redis::aio::MultiplexedConnection;
use fencelock::rusqlite::Connection;
use fencelock::store::{BoxFuture, Mode};
use fencelock::{Error, ErrorKind, Result, Token};
use fencelock_testkit::{Checker, check_fence};
use http::{Request, Response, StatusCode};
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tower::{Layer, Service, ServiceExt, service_fn};

async fn holds(mut checker: impl Checker) {
    let wrong = check_fence(&mut checker).await;
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn token(number: u64, mode: Mode) -> Token {
    Token::from_parts(number, mode, "stock/42", "redis").unwrap()
}

struct InProcess(Gate);

impl Checker for InProcess {
    fn access<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.0.enter(token).await.map(drop) })
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        self.0 = Gate::with_marks(self.0.marks());
        Box::pin(async {})
    }
}

#[tokio::test]
async fn the_gate() {
    holds(InProcess(Gate::new())).await;
}

struct Judging(Gate);

impl Checker for Judging {
    fn access<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        Box::pin(std::future::ready(self.0.accept(token)))
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        self.0 = Gate::with_marks(self.0.marks());
        Box::pin(async {})
    }
}

#[tokio::test]
async fn the_gate_that_only_judges() {
    holds(Judging(Gate::new())).await;
}

/// A table of the caller's and the marks beside it, in one transaction.
struct InSqlite {
    folder: tempfile::TempDir,
    database: Connection,
    written: u32,
}

impl InSqlite {
    fn new() -> InSqlite {
        let folder = tempfile::tempdir().unwrap();
        let database = InSqlite::open(&folder);
        database.execute_batch("CREATE TABLE writes (number INTEGER)").unwrap();
        InSqlite { folder, database, written: 0 }
    }

    fn open(folder: &tempfile::TempDir) -> Connection {
        let database = Connection::open(folder.path().join("shop.db")).unwrap();
        fence::sqlite::migrate(&database).unwrap();
        database
    }

    fn write(&mut self, token: &Token) -> Result<()> {
        let transaction = self.database.transaction().unwrap();
        transaction.execute("INSERT INTO writes VALUES (?1)", [i64::try_from(token.number()).unwrap_or(-1)]).unwrap();
        fence::sqlite::accept(&transaction, token)?;
        transaction.commit().unwrap();
        self.written += 1;
        Ok(())
    }
}

impl Checker for InSqlite {
    fn access<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        let answer = self.write(token);
        let kept: u32 = self.database.query_row("SELECT count(*) FROM writes", (), |row| row.get(0)).unwrap();
        assert_eq!(kept, self.written, "the write of a refused access is not kept, that of an accepted one is");
        Box::pin(std::future::ready(answer))
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        self.database = InSqlite::open(&self.folder);
        Box::pin(async {})
    }
}

#[tokio::test]
async fn in_sqlite() {
    holds(InSqlite::new()).await;
}

struct InRedis {
    server: server::Server,
    connection: MultiplexedConnection,
    write: fence::redis::FencedScript,
    written: u64,
}

impl InRedis {
    async fn new() -> InRedis {
        let server = server::Server::start();
        let connection = InRedis::connect(&server).await;
        // The script's keys and arguments are its own.
        let write = fence::redis::FencedScript::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
        InRedis { server, connection, write, written: 0 }
    }

    async fn connect(server: &server::Server) -> MultiplexedConnection {
        let client = fencelock::redis::Client::open(server.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }
}

impl Checker for InRedis {
    fn access<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let written: Result<u64> =
                self.write.call(&mut self.connection, "shop:marks", token, &["shop:writes"], &["1"]).await;
            if written.is_ok() {
                self.written += 1;
            }
            let kept: u64 = self.server.command::<Option<u64>>(&["GET", "shop:writes"]).unwrap_or(0);
            assert_eq!(kept, self.written, "a refused script has written nothing");
            assert!(written.as_ref().ok().is_none_or(|written| *written == kept));
            written.map(drop)
        })
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.connection = InRedis::connect(&self.server).await })
    }
}

#[tokio::test]
async fn in_redis() {
    holds(InRedis::new().await).await;
}

#[tokio::test]
async fn a_redis_server_that_is_gone_is_told() {
    let mut resource = InRedis::new().await;
    let token = token(34, Mode::Exclusive);
    fence::redis::accept(&mut resource.connection, "shop:marks", &token).await.unwrap();
    let late = Token::from_parts(33, Mode::Exclusive, "stock/42", "redis").unwrap();
    let refused = fence::redis::accept(&mut resource.connection, "shop:marks", &late).await.unwrap_err();
    assert_eq!(refused.message(), Overtaken { token: 33, by: 34 }.to_string());
    let InRedis { server, mut connection, .. } = resource;
    server.command::<()>(&["HSET", "shop:marks", "redis stock/42", "damaged"]);
    let damaged = fence::redis::accept(&mut connection, "shop:marks", &token).await.unwrap_err();
    assert_eq!(damaged.kind(), ErrorKind::Unavailable, "damaged marks let nobody in");
    drop(server);
    let gone = fence::redis::accept(&mut connection, "shop:marks", &token).await.unwrap_err();
    assert_eq!((gone.kind(), gone.effect()), (ErrorKind::Unavailable, fencelock::Effect::Unknown));
}

type Handler = tower::util::BoxCloneService<Request<String>, Response<String>, Infallible>;

/// Counts what gets through.
struct OverHttp {
    gate: Gate,
    shop: Fenced<Handler>,
    served: Arc<AtomicUsize>,
}

impl OverHttp {
    fn new(gate: Gate, served: Arc<AtomicUsize>) -> OverHttp {
        let count = served.clone();
        let handler = service_fn(move |request: Request<String>| {
            assert!(request.extensions().get::<Token>().is_some(), "the token is at hand");
            count.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, Infallible>(Response::new("written".to_string())) }
        });
        let shop = FenceLayer::new(gate.clone()).layer(Handler::new(handler));
        OverHttp { gate, shop, served }
    }
}

impl Checker for OverHttp {
    fn access<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let before = self.served.load(Ordering::Relaxed);
            let client = TokenLayer::new(token).layer(&mut self.shop);
            let response = client.oneshot(Request::put("/").body(String::new()).unwrap()).await.unwrap();
            let served = self.served.load(Ordering::Relaxed) - before;
            let answer = match response.status() {
                StatusCode::OK => Ok(()),
                StatusCode::PRECONDITION_FAILED => Err(Error::new(ErrorKind::Overtaken, "412")),
                StatusCode::BAD_REQUEST => Err(Error::new(ErrorKind::InvalidInput, "400")),
                other => panic!("{other}"),
            };
            assert_eq!(served == 1, answer.is_ok());
            answer
        })
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        *self = OverHttp::new(Gate::with_marks(self.gate.marks()), self.served.clone());
        Box::pin(async {})
    }
}

#[tokio::test]
async fn over_http() {
    holds(OverHttp::new(Gate::new(), Arc::default())).await;
}

#[tokio::test]
async fn what_http_answers() {
    let OverHttp { shop, .. } = OverHttp::new(Gate::new(), Arc::default());
    let ask = |headers: Vec<String>| {
        let mut request = Request::put("/stock/42");
        for value in headers {
            request = request.header(header::NAME, value);
        }
        shop.clone().oneshot(request.body(String::new()).unwrap())
    };
    let text = |number| header::write(&token(number, Mode::Exclusive));
    assert_eq!(ask(vec![text(34)]).await.unwrap().into_body(), "written");
    let refused = ask(vec![text(33)]).await.unwrap();
    assert_eq!(refused.status(), 412);
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert_eq!(
        refused.into_body(),
        "{\"type\":\"about:blank\",\"title\":\"Precondition Failed\",\"status\":412,\
         \"detail\":\"token 33 was overtaken by token 34: the lock was lost before this access\"}"
    );
    assert_eq!(ask(vec![]).await.unwrap().status(), 428);
    assert_eq!(ask(vec!["33".into()]).await.unwrap().status(), 400);
    assert_eq!(ask(vec![text(35), text(35)]).await.unwrap().status(), 400);

    let open = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) });
    let layer = FenceLayer::new(Gate::new()).optional().name_of(|uri| Some(uri.path()[1..].to_string()));
    let mut shop = layer.layer(open);
    let request = |path: &str| Request::put(path).header(header::NAME, text(34)).body(String::new()).unwrap();
    assert_eq!(shop.ready().await.unwrap().call(Request::new(String::new())).await.unwrap().status(), 200);
    assert_eq!(shop.ready().await.unwrap().call(request("/stock/42")).await.unwrap().status(), 200);
    assert_eq!(shop.ready().await.unwrap().call(request("/stock/43")).await.unwrap().status(), 400, "another lock");
}

/// An access that was accepted and takes its time is not overtaken half-way.
#[tokio::test]
async fn a_pass_keeps_the_next_one_waiting() {
    let gate = Gate::new();
    let first = gate.enter(&token(33, Mode::Exclusive)).await.unwrap();
    let next = gate.clone();
    let mut waiting = tokio::spawn(async move { next.enter(&token(34, Mode::Exclusive)).await.map(drop) });
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut waiting).await.is_err(), "33 is not done yet");
    drop(first);
    waiting.await.unwrap().unwrap();
    assert!(gate.enter(&token(33, Mode::Exclusive)).await.is_err());
    let readers =
        [gate.enter(&token(36, Mode::Shared)).await.unwrap(), gate.enter(&token(35, Mode::Shared)).await.unwrap()];
    drop(readers);
    let other = Token::from_parts(1, Mode::Exclusive, "stock/43", "redis").unwrap();
    let _pass = gate.enter(&token(36, Mode::Exclusive)).await.unwrap();
    gate.enter(&other).await.map(drop).expect("another name does not wait");
}

/// What is planted.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    OneMark,
    NoSharedMark,
    Forgetful,
    LabelBlind,
    CaseBlind,
    Float,
    Trusting,
}

struct Planted {
    bug: Bug,
    marks: HashMap<(String, String), (u64, u64)>,
}

impl Checker for Planted {
    fn access<'a>(&'a mut self, token: &'a Token) -> BoxFuture<'a, Result<()>> {
        if self.bug != Bug::Trusting
            && let Err(error) = fence::sql::access(fence::sql::Dialect::Sqlite, token)
        {
            return Box::pin(std::future::ready(Err(error)));
        }
        let label = if self.bug == Bug::LabelBlind { String::new() } else { token.label().to_string() };
        let name = if self.bug == Bug::CaseBlind { token.name().to_lowercase() } else { token.name().to_string() };
        let (w, s) = self.marks.entry((name, label)).or_default();
        let exclusive = token.mode() == Mode::Exclusive;
        let number = if self.bug == Bug::Float { token.number() as f64 as u64 } else { token.number() };
        let by = match self.bug {
            Bug::OneMark => *w,
            Bug::NoSharedMark => *w,
            _ if exclusive => (*w).max(*s),
            _ => *w,
        };
        if number < by {
            return Box::pin(std::future::ready(Err(Overtaken { token: number, by }.into())));
        }
        match self.bug {
            Bug::OneMark => *w = number,
            _ if exclusive => *w = number,
            _ => *s = number.max(*s),
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        if self.bug == Bug::Forgetful {
            self.marks.clear();
        }
        Box::pin(async {})
    }
}

#[tokio::test]
async fn planted_bugs_are_found_out() {
    for (bug, case) in [
        (Bug::OneMark, "shared beside shared"),
        (Bug::NoSharedMark, "a paused writer under live readers"),
        (Bug::Forgetful, "a restart"),
        (Bug::LabelBlind, "two stores"),
        (Bug::CaseBlind, "two names"),
        (Bug::Float, "numbers beyond 2^53"),
        (Bug::Trusting, "garbage tokens"),
    ] {
        let wrong = check_fence(&mut Planted { bug, marks: HashMap::new() }).await;
        assert!(wrong.iter().any(|wrong| wrong.starts_with(case)), "{case}: {wrong:#?}");
    }
}
