//! One node of the shop: an HTTP server of two routes, started as a process of its own by the stage.

use crate::Result;
use crate::args::NodeArgs;
use crate::by_hand::ByHand;
use crate::hook::Hook;
use crate::seller::{How, Seller};
use crate::shop::{Outcome, Shop, Way};
use crate::strategy::Strategy;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use fencelock::Locks;
use fencelock::limit::layer::LimitLayer;
use fencelock::limit::{Limit, Limiter};
use std::sync::Arc;

/// What somebody hears whom a limiter turns away.
pub(crate) const SORRY: &str = "sorry, you did not get one\n";

/// Serves until the standard input ends.
pub(crate) async fn serve(args: NodeArgs) -> Result<()> {
    let hook = Arc::new(Hook::default());
    hook.listen();
    let seller = Seller {
        shop: Shop::open(&args.db).await?,
        node: args.name.as_str().into(),
        work: args.work,
        hook,
        how: how(&args).await?,
    };
    let mut reduce = post(reduce);
    if let Some(rate) = args.limit {
        // In front of the sale alone: looking at the stock is free.
        let limiter = Limiter::local(Limit::token_bucket(rate));
        reduce = reduce.layer(LimitLayer::new(limiter)).layer(axum::middleware::map_response(sorry));
    }
    let routes = Router::new().route("/stock/{id}/reduce", reduce).route("/stock/{id}", get(stock));
    let listener = tokio::net::TcpListener::bind(args.listen).await?;
    println!("ready {}", listener.local_addr()?);
    Ok(axum::serve(listener, routes.with_state(Arc::new(seller))).await?)
}

async fn how(args: &NodeArgs) -> Result<How> {
    let store = || args.store.as_deref().ok_or("this strategy needs a --store");
    Ok(match args.strategy {
        Strategy::None => How::Database(Way::Naive),
        Strategy::ForUpdate => How::Database(Way::ForUpdate),
        Strategy::Optimistic => How::Database(Way::Version),
        Strategy::Cas => How::Database(Way::Value),
        Strategy::ProcessLock => How::Process(Arc::default()),
        strategy if strategy.by_hand() => {
            How::ByHand(Arc::new(ByHand::connect(store()?, strategy, args.expiry, args.pause_before_del).await?))
        }
        strategy => {
            let locks = Locks::builder(store()?).identity(&args.name).connect().await?;
            How::Locks { locks, strategy, lease: args.lease }
        }
    })
}

async fn reduce(State(seller): State<Arc<Seller>>, Path(id): Path<i64>) -> Response {
    match seller.sell(id).await {
        Ok(Outcome::Sold) => "sold\n".into_response(),
        Ok(Outcome::SoldOut) => "sold out\n".into_response(),
        Ok(Outcome::Conflict) => (StatusCode::CONFLICT, "conflict\n").into_response(),
        Ok(Outcome::Overtaken) => (StatusCode::PRECONDITION_FAILED, "overtaken\n").into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

async fn stock(State(seller): State<Arc<Seller>>, Path(id): Path<i64>) -> Response {
    match seller.shop.left(id).await {
        Ok(left) => format!("{left}\n").into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

/// The limiter's own answer in the shop's words; `Retry-After` stays.
async fn sorry(answer: Response) -> Response {
    if answer.status() != StatusCode::TOO_MANY_REQUESTS {
        return answer;
    }
    let again = answer.headers().get(header::RETRY_AFTER).cloned();
    let mut sorry = (StatusCode::TOO_MANY_REQUESTS, SORRY).into_response();
    if let Some(again) = again {
        sorry.headers_mut().insert(header::RETRY_AFTER, again);
    }
    sorry
}
