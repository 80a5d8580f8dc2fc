//! The stage with its page: serves the files, takes orders for sales one at a time, and tells every browser how they go.

use crate::Result;
use crate::args::{Common, PageArgs};
use crate::live::Live;
use crate::nginx;
use crate::page::{Page, Source};
use crate::plan::{Fault, Plan, store_kind};
use crate::sale::{self, SHORT_LEASE};
use crate::servers::World;
use crate::shop::{self, Shop};
use crate::stage::Stage;
use crate::strategy::Strategy;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::ValueEnum;
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// What the handlers share.
struct Web {
    common: Common,
    world: World,
    live: Live,
    source: Source,
    /// One sale at a time.
    turn: Arc<tokio::sync::Semaphore>,
    /// The nodes and nginx while no sale is under way, so that the shop is open for others too; a sale has its own.
    open: Arc<tokio::sync::Mutex<Option<Stage>>>,
    /// Where nginx stays, sale or not.
    front: Option<SocketAddr>,
}

/// Serves until Ctrl-C or until the standard input of a test ends.
pub(crate) async fn serve(args: PageArgs, common: Common) -> Result<bool> {
    let world = World::open(&common)?;
    let source = args.page.map_or(Source::BuiltIn, Source::Folder);
    Page::read(&source)?;
    let listener = match tokio::net::TcpListener::bind(args.listen).await {
        Ok(listener) => listener,
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            eprintln!("{} is taken, so another port:", args.listen);
            tokio::net::TcpListener::bind((args.listen.ip(), 0)).await?
        }
        Err(error) => return Err(error.into()),
    };
    world.said.iter().for_each(|line| eprintln!("{line}"));
    let first = Plan::new(&common, Strategy::Lock, &world.databases[0], world.stores.first().map(String::as_str));
    first.stock_up(&Shop::open(&first.db).await?).await?;
    let stage = Stage::open(&first).await?;
    stage.told().iter().for_each(|line| eprintln!("{line}"));
    println!("the stage is open: http://{}", listener.local_addr()?);
    let live = Live::for_page();
    live.state().send_modify(|state| state.front = stage.front().into());
    let turn = Arc::new(tokio::sync::Semaphore::new(1));
    let front = stage.nginx();
    let web = Web { common, world, live, source, turn, open: Arc::new(Some(stage).into()), front };
    let routes = Router::new()
        .route("/", get(index))
        .route("/index.html", get(index))
        .route("/assets/{name}", get(asset))
        .route("/menu", get(menu))
        .route("/events", get(events))
        .route("/run", post(run))
        .with_state(Arc::new(web));
    tokio::select! {
        served = async { axum::serve(listener, routes).await } => served?,
        stopped = tokio::signal::ctrl_c() => stopped?,
    }
    Ok(true)
}

type Shared = State<Arc<Web>>;

/// Read again for every request, so that a change in a folder is seen at once.
fn page(web: &Web) -> std::result::Result<Page, (StatusCode, String)> {
    Page::read(&web.source).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")))
}

async fn index(State(web): Shared, asked: HeaderMap) -> Response {
    page(&web).map_or_else(IntoResponse::into_response, |page| page.index(&asked))
}

async fn asset(State(web): Shared, Path(name): Path<String>) -> Response {
    page(&web).map_or_else(IntoResponse::into_response, |page| page.asset(&name))
}

/// What there is to choose from.
async fn menu(State(web): Shared) -> Response {
    let redis = web.world.stores.iter().any(|url| url.starts_with("redis:"));
    let strategies: Vec<_> = Strategy::value_variants()
        .iter()
        .filter(|strategy| redis || !strategy.by_hand())
        .filter_map(|strategy| {
            let value = strategy.to_possible_value()?;
            let what = value.get_help().map(ToString::to_string).unwrap_or_default();
            Some(serde_json::json!({ "name": value.get_name(), "what": what, "kind": strategy.kind() }))
        })
        .collect();
    let stores: Vec<String> = web.world.stores.iter().map(|url| store_kind(url)).collect();
    let database = shop::kind(&web.world.databases[0]).unwrap_or("?");
    Json(serde_json::json!({
        "strategies": strategies, "stores": stores, "database": database, "nginx": nginx::found().is_some(), "by_hand": redis,
    }))
    .into_response()
}

/// The latest state at once, and again whenever it changes.
async fn events(State(web): Shared) -> Sse<impl Stream<Item = std::result::Result<Event, Infallible>>> {
    let mut receiver = web.live.state().subscribe();
    receiver.mark_changed();
    let states = stream::unfold(receiver, |mut receiver| async move {
        receiver.changed().await.ok()?;
        let state = receiver.borrow_and_update().clone();
        let event = Event::default().json_data(&state).unwrap_or_default();
        Some((Ok(event), receiver))
    });
    Sse::new(states).keep_alive(KeepAlive::new().interval(Duration::from_secs(15)))
}

/// What a button sends.
#[derive(Deserialize)]
struct Order {
    strategy: String,
    store: String,
    pause: bool,
    bucket: bool,
    limit_req: bool,
    limit_conn: bool,
}

async fn run(State(web): Shared, Json(order): Json<Order>) -> Response {
    let Ok(strategy) = Strategy::from_str(&order.strategy, false) else {
        return (StatusCode::BAD_REQUEST, "there is no such strategy\n").into_response();
    };
    let Ok(turn) = web.turn.clone().try_acquire_owned() else {
        return (StatusCode::CONFLICT, "a sale is under way\n").into_response();
    };
    let mut store = web.world.stores.iter().find(|url| store_kind(url) == order.store).or(web.world.stores.first());
    if strategy.by_hand() {
        store = web.world.stores.iter().find(|url| url.starts_with("redis:"));
    }
    let mut plan = Plan::new(&web.common, strategy, &web.world.databases[0], store.map(String::as_str));
    if order.pause {
        (plan.fault, plan.lease, plan.expiry) = (Fault::Paused, SHORT_LEASE, SHORT_LEASE);
    } else {
        plan = crate::story::with_its_fault(plan);
    }
    // Ten a second would take a minute with everybody coming ten times.
    if order.bucket {
        plan.limit = Some("10/1s".into());
    }
    if order.limit_req {
        plan.limits.limit_req = plan.limits.limit_req.or(Some("100r/s".into()));
        plan.limits.nodelay = true;
    }
    if order.limit_conn {
        plan.limits.conn_per_address = plan.limits.conn_per_address.or(Some(20));
        plan.limits.conn_per_server = plan.limits.conn_per_server.or(Some(30));
    }
    plan.front = web.front;
    tokio::spawn(async move {
        let mut open = web.open.clone().lock_owned().await;
        drop(open.take());
        let idle = Plan { fault: Fault::Nothing, ..plan.clone() };
        // With a limiter in front the press that makes a strategy fail is taken away, which is the point of it.
        let limited = plan.limit.is_some() || plan.limits.limit_req.is_some() || plan.limits.conn_per_address.is_some();
        let ended = if limited { sale::run(&plan, &web.live).await } else { sale::pressed(plan, &web.live).await };
        if let Err(error) = ended {
            web.live.failed(&error.to_string());
        }
        drop(turn);
        // Open again, with what is left on the shelf.
        match Stage::open(&idle).await {
            Ok(stage) => *open = Some(stage),
            Err(error) => eprintln!("the shop stays closed until the next sale: {error}"),
        }
    });
    StatusCode::ACCEPTED.into_response()
}
