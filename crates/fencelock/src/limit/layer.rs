//! Layers for `tower` services that speak HTTP: requests over the limit are answered with 429 and `Retry-After` instead of being handed on.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> fencelock::Result<()> {
//! use fencelock::limit::layer::{ConcurrencyLayer, LimitLayer};
//! use fencelock::limit::{Concurrency, Limit, Limiter, Rate};
//! use tower_layer::Layer;
//! # use tower_service::Service;
//! # #[derive(Clone)]
//! # struct Shop;
//! # impl Service<http::Request<String>> for Shop {
//! #     type Response = http::Response<String>;
//! #     type Error = std::convert::Infallible;
//! #     type Future = std::future::Ready<Result<http::Response<String>, std::convert::Infallible>>;
//! #     fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
//! #         std::task::Poll::Ready(Ok(()))
//! #     }
//! #     fn call(&mut self, _: http::Request<String>) -> Self::Future {
//! #         std::future::ready(Ok(http::Response::new("welcome".into())))
//! #     }
//! # }
//!
//! // One a second for each API key; requests without one are not limited.
//! let limiter = Limiter::local(Limit::token_bucket(Rate::per_second(1)));
//! let by_key = LimitLayer::new(limiter).key(|head| head.headers.get("x-api-key")?.to_str().ok().map(String::from));
//! // And a hundred at once, whoever they are.
//! let at_once = ConcurrencyLayer::new(Concurrency::local(100));
//! let mut shop = by_key.layer(at_once.layer(Shop));
//!
//! let request = || http::Request::builder().header("x-api-key", "7").body(String::new()).unwrap();
//! assert_eq!(shop.call(request()).await.unwrap().status(), 200);
//! let refused = shop.call(request()).await.unwrap();
//! assert_eq!(refused.status(), 429);
//! assert_eq!(refused.headers()["retry-after"], "1");
//! # Ok(())
//! # }
//! ```
//!
//! The body of the service's answers must be made from a `String`, as axum's is.

use super::{Concurrency, Limiter};
use crate::error::{Error, ErrorKind, Result, spoken};
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower_layer::Layer;
use tower_service::Service;

/// What is known of a request before its body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Head<'a> {
    /// What it wants.
    pub method: &'a http::Method,
    /// Of what.
    pub uri: &'a http::Uri,
    /// What it says of itself.
    pub headers: &'a http::HeaderMap,
    /// What layers before this one found out, the peer's address for instance.
    pub extensions: &'a http::Extensions,
}

type KeyOf = Arc<dyn Fn(&Head<'_>) -> Option<String> + Send + Sync>;

/// What both layers have in common.
#[derive(Clone)]
struct Terms {
    key: Option<KeyOf>,
    wait: Duration,
    open: bool,
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms")
            .field("keyed", &self.key.is_some())
            .field("wait", &self.wait)
            .field("open", &self.open)
            .finish()
    }
}

/// Whose limit a request counts for.
enum Whose {
    Everybodys,
    Key(String),
    Nobodys,
}

impl Terms {
    fn whose<B>(&self, request: &Request<B>) -> Whose {
        let Some(key) = &self.key else { return Whose::Everybodys };
        let head = Head {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        };
        key(&head).map_or(Whose::Nobodys, Whose::Key)
    }

    /// What to answer instead of handing the request on, if anything.
    fn refusal<R: From<String>>(&self, error: &Error) -> Option<Response<R>> {
        match error.kind() {
            ErrorKind::Limited | ErrorKind::Held | ErrorKind::TimedOut => {
                let after = error.retry_after().unwrap_or(Duration::from_secs(1));
                Some(answer(StatusCode::TOO_MANY_REQUESTS, Some(after)))
            }
            _ => {
                tracing::warn!(%error, "a limiter cannot decide");
                if self.open { None } else { Some(answer(StatusCode::SERVICE_UNAVAILABLE, None)) }
            }
        }
    }
}

/// A problem body (RFC 9457). It names nobody: what a key is, is no business of whoever asks.
fn answer<R: From<String>>(status: StatusCode, after: Option<Duration>) -> Response<R> {
    let title = status.canonical_reason().unwrap_or_default();
    let detail = match after {
        Some(after) => format!("over the limit; again in {}", spoken(after)),
        None => "the limit cannot be looked up".to_string(),
    };
    let body =
        format!(r#"{{"type":"about:blank","title":"{title}","status":{},"detail":"{detail}"}}"#, status.as_u16());
    let mut response = Response::new(R::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Some(after) = after {
        // Whole seconds, never too early.
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
    }
    response
}

macro_rules! layer_methods {
    () => {
        /// A limit for each key: `key` says whose a request is, or `None` for one that is not limited. Without this there is one
        /// limit for all.
        #[must_use]
        pub fn key(mut self, key: impl Fn(&Head<'_>) -> Option<String> + Send + Sync + 'static) -> Self {
            self.terms.key = Some(Arc::new(key));
            self
        }

        /// Lets a request wait this long for its turn instead of refusing it at once.
        #[must_use]
        pub fn wait(mut self, wait: Duration) -> Self {
            self.terms.wait = wait;
            self
        }

        /// Hands requests on while the store cannot be asked. Without this they are answered with 503.
        #[must_use]
        pub fn open_when_unavailable(mut self) -> Self {
            self.terms.open = true;
            self
        }
    };
}

/// Lets through what a [`Limiter`] lets through, and answers the rest with 429.
#[derive(Clone, Debug)]
pub struct LimitLayer {
    limiter: Limiter,
    terms: Terms,
}

impl LimitLayer {
    /// Refuses at once what a token bucket does not let through now; delays what a leaky bucket delays.
    #[must_use]
    pub fn new(limiter: Limiter) -> LimitLayer {
        let wait = if limiter.rule.leaky { Duration::MAX } else { Duration::ZERO };
        LimitLayer { limiter, terms: Terms { key: None, wait, open: false } }
    }

    layer_methods!();
}

/// Lets so many requests be under way at once as a [`Concurrency`] does, and answers the rest with 429. A request is under way until its
/// answer's head is there.
#[derive(Clone, Debug)]
pub struct ConcurrencyLayer {
    limit: Concurrency,
    terms: Terms,
}

impl ConcurrencyLayer {
    /// Refuses at once where no slot is free.
    #[must_use]
    pub fn new(limit: Concurrency) -> ConcurrencyLayer {
        ConcurrencyLayer { limit, terms: Terms { key: None, wait: Duration::ZERO, open: false } }
    }

    layer_methods!();
}

/// A service behind a [`LimitLayer`].
#[derive(Clone, Debug)]
pub struct Limited<S> {
    inner: S,
    layer: LimitLayer,
}

/// A service behind a [`ConcurrencyLayer`].
#[derive(Clone, Debug)]
pub struct Slotted<S> {
    inner: S,
    layer: ConcurrencyLayer,
}

impl<S> Layer<S> for LimitLayer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, layer: self.clone() }
    }
}

impl<S> Layer<S> for ConcurrencyLayer {
    type Service = Slotted<S>;

    fn layer(&self, inner: S) -> Slotted<S> {
        Slotted { inner, layer: self.clone() }
    }
}

impl LimitLayer {
    /// No round trip for a local limiter, one for a shared one.
    async fn admit(&self, whose: Whose) -> Result<()> {
        match whose {
            Whose::Everybodys => self.limiter.acquire_within(self.terms.wait).await,
            Whose::Key(key) => self.limiter.key(&key).acquire_within(self.terms.wait).await,
            Whose::Nobodys => Ok(()),
        }
    }
}

impl ConcurrencyLayer {
    async fn admit(&self, whose: Whose) -> Result<Option<super::Slot>> {
        match whose {
            Whose::Everybodys => self.limit.acquire_within(self.terms.wait).await.map(Some),
            Whose::Key(key) => self.limit.key(&key).acquire_within(self.terms.wait).await.map(Some),
            Whose::Nobodys => Ok(None),
        }
    }
}

macro_rules! service {
    ($service:ident) => {
        impl<S, B, R> Service<Request<B>> for $service<S>
        where
            S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
            S::Future: Send,
            B: Send + 'static,
            R: From<String>,
        {
            type Response = Response<R>;
            type Error = S::Error;
            type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

            fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
                self.inner.poll_ready(cx)
            }

            fn call(&mut self, request: Request<B>) -> Self::Future {
                // The one that is ready goes with the request; its clone stays and gets ready again.
                let next = self.inner.clone();
                let mut inner = std::mem::replace(&mut self.inner, next);
                let layer = self.layer.clone();
                let whose = layer.terms.whose(&request);
                Box::pin(async move {
                    let admitted = layer.admit(whose).await;
                    if let Err(error) = &admitted
                        && let Some(refusal) = layer.terms.refusal(error)
                    {
                        return Ok(refusal);
                    }
                    let answered = inner.call(request).await;
                    drop(admitted);
                    answered
                })
            }
        }
    };
}

service!(Limited);
service!(Slotted);
