//! The layers for `tower`: what is handed on, what is answered instead, and with which headers.

use crate::clock;
use fencelock::Locks;
use fencelock::limit::layer::{ConcurrencyLayer, LimitLayer};
use fencelock::limit::{Concurrency, Limit, Limiter, Rate};
use futures_util::poll;
use http::{Request, Response};
use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Semaphore;
use tower_layer::Layer;
use tower_service::Service;

/// Answers each request when it is let go.
#[derive(Clone)]
struct Shop(Arc<Semaphore>);

impl Shop {
    fn open() -> Shop {
        Shop(Arc::new(Semaphore::new(1_000)))
    }
}

impl Service<Request<String>> for Shop {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<String>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let gate = self.0.clone();
        Box::pin(async move {
            gate.acquire().await.unwrap().forget();
            Ok(Response::new(format!("got {}", request.into_body())))
        })
    }
}

fn request(user: Option<&str>) -> Request<String> {
    let mut request = Request::builder().uri("/cart");
    if let Some(user) = user {
        request = request.header("x-user", user);
    }
    request.body("it".into()).unwrap()
}

fn by_user(head: &fencelock::limit::layer::Head<'_>) -> Option<String> {
    assert_eq!(head.uri.path(), "/cart");
    head.headers.get("x-user")?.to_str().ok().map(String::from)
}

#[tokio::test]
async fn over_the_limit_is_429_with_when_to_come_again() {
    let (virtual_clock, clock) = clock();
    let limit = Limit::token_bucket(Rate::new(1, Duration::from_millis(2_500))).burst(2);
    let layer = LimitLayer::new(Limiter::local_with(limit, 10, clock)).key(by_user);
    let mut shop = layer.layer(Shop::open());
    for _ in 0..2 {
        let answer = shop.call(request(Some("a"))).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.body().as_str()), (200, "got it"));
    }
    let refused = shop.call(request(Some("a"))).await.unwrap();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "3");
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert_eq!(
        refused.body(),
        r#"{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"over the limit; again in 2.5 s"}"#
    );
    // Somebody else, nobody in particular, and the same one later.
    assert_eq!(shop.call(request(Some("b"))).await.unwrap().status(), 200);
    for _ in 0..10 {
        assert_eq!(shop.call(request(None)).await.unwrap().status(), 200);
    }
    virtual_clock.advance(Duration::from_millis(2_499));
    let refused = shop.call(request(Some("a"))).await.unwrap();
    assert_eq!(refused.headers()["retry-after"], "1");
    virtual_clock.advance(Duration::from_millis(1));
    assert_eq!(shop.call(request(Some("a"))).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_leaky_bucket_delays_and_a_token_bucket_if_it_is_told_to() {
    let (virtual_clock, clock) = clock();
    let leaky = Limit::leaky_bucket(Rate::per_second(1)).burst(1);
    let tokens = Limit::token_bucket(Rate::per_second(1));
    for (limit, wait) in [(leaky, None), (tokens, Some(Duration::from_secs(1)))] {
        let mut layer = LimitLayer::new(Limiter::local_with(limit, 10, clock.clone()));
        if let Some(wait) = wait {
            layer = layer.wait(wait);
        }
        let mut shop = layer.layer(Shop::open());
        assert_eq!(shop.call(request(None)).await.unwrap().status(), 200);
        let mut second = pin!(shop.call(request(None)));
        assert!(poll!(second.as_mut()).is_pending());
        assert_eq!(shop.call(request(None)).await.unwrap().status(), 429);
        virtual_clock.advance(Duration::from_millis(999));
        assert!(poll!(second.as_mut()).is_pending());
        virtual_clock.advance(Duration::from_millis(1));
        assert_eq!(second.await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn so_many_at_once_and_no_more() {
    let gate = Arc::new(Semaphore::new(0));
    let layer = ConcurrencyLayer::new(Concurrency::local(2)).key(by_user);
    let mut shop = layer.layer(Shop(gate.clone()));
    let mut under_way = [pin!(shop.call(request(Some("a")))), pin!(shop.call(request(Some("a"))))];
    for request in &mut under_way {
        assert!(poll!(request.as_mut()).is_pending());
    }
    let refused = shop.call(request(Some("a"))).await.unwrap();
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    let mut other = pin!(shop.call(request(Some("b"))));
    assert!(poll!(other.as_mut()).is_pending(), "another key has slots of its own");
    gate.add_permits(1);
    let [first, _second] = under_way;
    assert_eq!(first.await.unwrap().status(), 200);
    let mut next = pin!(shop.call(request(Some("a"))));
    assert!(poll!(next.as_mut()).is_pending(), "the slot is free again");
    gate.add_permits(2);
    assert_eq!(other.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_store_that_cannot_decide_closes_the_door_unless_told_otherwise() {
    // It has no limiters at all.
    let locks = Locks::with_store(fencelock::store::memory::MemoryStore::new());
    let limiter = locks.limiter("api", Limit::token_bucket(Rate::per_second(1)));
    let layer = LimitLayer::new(limiter);
    let refused = layer.layer(Shop::open()).call(request(None)).await.unwrap();
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().get("retry-after").is_none());
    let open = layer.open_when_unavailable().layer(Shop::open()).call(request(None)).await.unwrap();
    assert_eq!(open.status(), 200);
}
